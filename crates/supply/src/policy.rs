//! As much of deny.toml as is checked here: licences, sources, wildcards.

use crate::licence;
use crate::metadata::Metadata;

/// Where packages may come from.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

pub(crate) struct DenyPolicy {
    allowed: Vec<String>,
    /// A package and what else it may have.
    exceptions: Vec<(String, Vec<String>)>,
}

impl DenyPolicy {
    /// Reads the section `[licenses]`, in the form that it has in this repository.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let uncommented: Vec<&str> = text
            .lines()
            .map(|line| line.split('#').next().unwrap_or_default())
            .collect();
        let text = uncommented.join("\n");
        let (_, section) = text
            .split_once("[licenses]")
            .ok_or("deny.toml has no [licenses]")?;
        let section = section.split("\n[").next().unwrap_or_default();
        let (before, after) = section.split_once("exceptions").unwrap_or((section, ""));
        let (_, list) = before
            .split_once("allow")
            .ok_or("deny.toml allows no licence")?;
        let list = list.split(']').next().unwrap_or_default();
        let exceptions = after.split('{').skip(1).filter_map(|exception| {
            let mut words = quoted(exception.split('}').next()?);
            let name = words.next()?;
            Some((name, words.collect()))
        });
        Ok(Self {
            allowed: quoted(list).collect(),
            exceptions: exceptions.collect(),
        })
    }

    /// What is wrong with the packages.
    pub(crate) fn broken_by(&self, metadata: &Metadata) -> Vec<String> {
        let mut wrong = Vec::new();
        for package in &metadata.packages {
            let id = package.id();
            let mine = self
                .exceptions
                .iter()
                .find(|(name, _)| *name == package.name);
            let allowed = |licence: &str| {
                let is = |known: &String| known == licence;
                self.allowed.iter().any(is) || mine.is_some_and(|(_, more)| more.iter().any(is))
            };
            if !licence::suffices(&package.license, &allowed) {
                wrong.push(format!(
                    "{id}: deny.toml does not allow its licence, {}",
                    package.license
                ));
            }
            if package
                .source
                .as_deref()
                .is_some_and(|source| source != REGISTRY)
            {
                wrong.push(format!("{id}: it is not from the registry"));
            }
            if package.source.is_none() {
                let wild = package
                    .asks_for
                    .iter()
                    .filter(|(_, version)| version == "*");
                wrong.extend(wild.map(|(name, _)| format!("{id}: it takes any version of {name}")));
            }
        }
        for (name, _) in &self.exceptions {
            if !metadata
                .packages
                .iter()
                .any(|package| package.name == *name)
            {
                wrong.push(format!(
                    "deny.toml has an exception for {name}, which is not there"
                ));
            }
        }
        wrong
    }
}

fn quoted(text: &str) -> impl Iterator<Item = String> {
    text.split('"').skip(1).step_by(2).map(str::to_owned)
}
