//! Rules of policy routing.

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage};

use crate::{Family, Netlink, Result};

/// A rule that leads to a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The family whose packets it concerns.
    pub family: Family,
    /// Its place, low first; the kernel puts it before all others but the local table's if `None`.
    pub priority: Option<u32>,
    /// Concerns packets with this firewall mark.
    pub fwmark: Option<u32>,
    /// Concerns packets that do *not* fit the rest of it.
    pub not: bool,
    /// The table to look in.
    pub table: u32,
    /// Ignore routes found there whose prefix is this long or shorter: 0 ignores default routes.
    pub suppress_prefixlength: Option<u32>,
}

impl Netlink {
    /// All rules of a family that lead to tables.
    ///
    /// # Errors
    ///
    /// The kernel's, with the request.
    pub fn rules(&self, family: Family) -> Result<Vec<Rule>> {
        let mut message = RuleMessage::default();
        message.header.family = family.into();
        let answers = self.dump("listing rules", Message::GetRule(message))?;
        Ok(answers
            .iter()
            .filter_map(|answer| Rule::from_message(answer, family))
            .collect())
    }

    /// Adds a rule; an error of kind `AlreadyExists` if there is one like it.
    ///
    /// # Errors
    ///
    /// The kernel's, with the request: `AlreadyExists` if there is such a rule.
    pub fn add_rule(&self, rule: &Rule) -> Result<()> {
        let what = format!("adding {}", rule.describe());
        self.change(
            what,
            Message::NewRule(rule.message()),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    /// Adds a rule even if there is one like it: the kernel puts it before that one, too.
    ///
    /// # Errors
    ///
    /// The kernel's, with the request.
    pub fn insert_rule(&self, rule: &Rule) -> Result<()> {
        let what = format!("adding {}", rule.describe());
        self.change(what, Message::NewRule(rule.message()), NLM_F_CREATE)
    }

    /// Deletes a rule; an error of kind `NotFound` if there is none like it.
    ///
    /// # Errors
    ///
    /// The kernel's, with the request: `NotFound` if there is no such rule.
    pub fn delete_rule(&self, rule: &Rule) -> Result<()> {
        let what = format!("deleting {}", rule.describe());
        self.change(what, Message::DelRule(rule.message()), 0)
    }
}

impl Rule {
    fn describe(&self) -> String {
        let not = if self.not { "not " } else { "" };
        let mark = self.fwmark.map(|mark| format!("fwmark {mark:#x} "));
        format!("rule {not}{}table {}", mark.unwrap_or_default(), self.table)
    }

    fn message(&self) -> RuleMessage {
        let mut message = RuleMessage::default();
        message.header.family = self.family.into();
        message.header.action = RuleAction::ToTable;
        message.header.table = u8::try_from(self.table).unwrap_or(0);
        if self.not {
            message.header.flags = RuleFlags::Invert;
        }
        let attributes = [
            Some(RuleAttribute::Table(self.table)),
            self.priority.map(RuleAttribute::Priority),
            self.fwmark.map(RuleAttribute::FwMark),
            self.suppress_prefixlength
                .map(RuleAttribute::SuppressPrefixLen),
        ];
        message.attributes.extend(attributes.into_iter().flatten());
        message
    }

    pub(super) fn from_message(message: &Message, family: Family) -> Option<Self> {
        let Message::NewRule(message) = message else {
            return None;
        };
        if message.header.action != RuleAction::ToTable {
            return None;
        }
        let mut rule = Self {
            family,
            // The kernel leaves out a priority of 0.
            priority: Some(0),
            fwmark: None,
            not: message.header.flags.contains(RuleFlags::Invert),
            table: message.header.table.into(),
            suppress_prefixlength: None,
        };
        for attribute in &message.attributes {
            match attribute {
                RuleAttribute::Table(table) => rule.table = *table,
                RuleAttribute::Priority(priority) => rule.priority = Some(*priority),
                RuleAttribute::FwMark(mark) => rule.fwmark = Some(*mark),
                // The kernel says -1 where there is none.
                RuleAttribute::SuppressPrefixLen(len) if *len != u32::MAX => {
                    rule.suppress_prefixlength = Some(*len);
                }
                _ => {}
            }
        }
        Some(rule)
    }
}
