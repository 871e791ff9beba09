//! The arguments of `adit agent`.

use std::path::PathBuf;

use adit_ctl::text::is_printable;
use adit_fleet::{EtcdAddress, is_gateway_name};
use clap::builder::TypedValueParser;
use clap::{Args, Subcommand};

use super::values::interface_name;
use crate::failure::{self, bail};

/// Where agents keep what they brought, and their status.
pub(crate) const AGENT_DIR: &str = "/run/adit-agent";

#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true
)]
pub(crate) struct AgentArgs {
    #[command(flatten)]
    pub(crate) serve: Option<ServeAgentArgs>,
    #[command(subcommand)]
    pub(crate) command: Option<AgentCommand>,
}

#[derive(Subcommand)]
pub(crate) enum AgentCommand {
    /// Say what an agent has brought to an interface, and which records it refuses
    Status(AgentStatusArgs),
}

// Clap leaves a group empty that has arguments of another struct: then it would never be there.
#[derive(Args, Clone)]
#[group(args = ["interface"])]
pub(crate) struct ServeAgentArgs {
    /// The interface; it need not exist yet
    #[arg(value_name = "INTERFACE", value_parser = interface_name)]
    pub(crate) interface: String,
    /// Where peers come from: dir:PATH, a folder of files NAME.conf, each with the section of one peer;
    /// exec:PROGRAM, which says lines of JSON; or etcd:URL[,URL...]/PREFIX, keys with a JSON object each
    #[arg(long, value_name = "SOURCE", value_parser = source)]
    pub(crate) source: AgentSource,
    /// The folder of the files that records name by PresharedKeyFile, each with one preshared key
    #[arg(long, value_name = "DIR")]
    pub(crate) psk_dir: Option<PathBuf>,
    /// Let the packet filter limit peers to the AllowedPorts of their records; takes nf_tables and CAP_NET_ADMIN
    #[arg(long)]
    pub(crate) rules: bool,
    /// Where to keep what was brought, and the status
    #[arg(long, value_name = "DIR", default_value = AGENT_DIR)]
    pub(crate) state: PathBuf,
    /// Let the members of this group, a name or a number, read the status, for `adit metrics` without root;
    /// ADIT_STATUS_GROUP says the same
    #[arg(long, value_name = "GROUP")]
    pub(crate) status_group: Option<String>,
    /// Keep all rights, for a debugger or where the sandbox is in the way, as ADIT_NO_SANDBOX=1 does: see
    /// SECURITY.md
    // Not by `env`: the variable alone would have `adit agent status` miss the other arguments.
    #[arg(long)]
    pub(crate) no_sandbox: bool,
    #[command(flatten)]
    pub(crate) tls: EtcdTlsArgs,
    /// Bring a peer only when it begins a handshake, and remove it when it is gone: its record in etcd: is
    /// named PREFIX and its public key
    #[arg(long)]
    pub(crate) just_in_time: bool,
    /// Tell other gateways which peers are here and where, by keys of this prefix in the etcd of the source, and
    /// keep what they tell in STATE/INTERFACE.endpoints, for `adit call`
    #[arg(long, value_name = "PREFIX")]
    pub(crate) write_back: Option<String>,
    /// What this gateway is called there, instead of the name of the host
    #[arg(long, value_name = "NAME", requires = "write_back")]
    pub(crate) gateway: Option<String>,
    /// Arguments of the program of exec:
    #[arg(last = true, value_name = "ARGUMENT")]
    pub(crate) arguments: Vec<String>,
    /// Do the work, for the process that starts it again
    #[arg(long, hide = true)]
    pub(crate) worker: bool,
}

impl ServeAgentArgs {
    /// What clap cannot tell.
    pub(crate) fn check(&self) -> failure::Result<()> {
        let AgentSource::Etcd(address) = &self.source else {
            let option = match (self.just_in_time, &self.write_back) {
                (true, _) => "--just-in-time asks a store for each peer",
                (_, Some(_)) => "--write-back writes to a store",
                _ => return Ok(()),
            };
            bail!(
                Mistake,
                "{option}, and {} is none: leave it out, or name an etcd: source",
                self.source
            );
        };
        let Some(prefix) = &self.write_back else {
            return Ok(());
        };
        if prefix.is_empty() || !prefix.chars().all(is_printable) {
            bail!(
                Mistake,
                "--write-back takes what keys begin with, as wg0-held/"
            );
        }
        if prefix.starts_with(&address.prefix) || address.prefix.starts_with(prefix) {
            bail!(
                Mistake,
                "--write-back {prefix}: the keys would be among those of the source, which begin with {}: take another prefix",
                address.prefix
            );
        }
        let gateway = self.gateway_name();
        if !is_gateway_name(&gateway) {
            bail!(
                Mistake,
                "\"{gateway}\" is no name of a gateway: --gateway takes 1 to 64 bytes that can be printed, without spaces"
            );
        }
        Ok(())
    }

    /// What this gateway calls itself.
    pub(crate) fn gateway_name(&self) -> String {
        let host = || {
            rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned()
        };
        self.gateway.clone().unwrap_or_else(host)
    }

    pub(crate) fn has_sandbox(&self) -> bool {
        let variable = std::env::var_os("ADIT_NO_SANDBOX").unwrap_or_default();
        let is_set = clap::builder::FalseyValueParser::new().parse_ref(
            &clap::Command::new("adit"),
            None,
            &variable,
        );
        !self.no_sandbox && !is_set.unwrap_or(true)
    }
}

/// How etcd is reached over https.
#[derive(Args, Clone, Default)]
pub(crate) struct EtcdTlsArgs {
    /// For https: the authorities that sign the certificates of etcd's members, as PEM
    #[arg(long, value_name = "FILE")]
    pub(crate) etcd_ca: Option<PathBuf>,
    /// The certificate by which etcd knows this host, as PEM
    #[arg(long, value_name = "FILE", requires = "etcd_key")]
    pub(crate) etcd_cert: Option<PathBuf>,
    /// The private key of that certificate, as PEM
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    pub(crate) etcd_key: Option<PathBuf>,
}

/// Records in the place of a file.
#[derive(Args, Clone, Default)]
pub(crate) struct RecordSourceArgs {
    /// Change the peer's record in this source, dir:PATH or etcd:URL[,URL...]/PREFIX, and no file: the agents of the
    /// source do the rest
    #[arg(long, value_name = "SOURCE", value_parser = source)]
    pub(crate) source: Option<AgentSource>,
    #[command(flatten)]
    pub(crate) tls: EtcdTlsArgs,
}

#[derive(Args)]
pub(crate) struct AgentStatusArgs {
    /// The interface
    #[arg(value_name = "INTERFACE", value_parser = interface_name)]
    pub(crate) interface: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Go on, and print it again each time that it changes; with --json, a line each
    #[arg(long)]
    pub(crate) follow: bool,
    /// Where the agent keeps its status
    #[arg(long, value_name = "DIR", default_value = AGENT_DIR)]
    pub(crate) state: PathBuf,
}

/// Where peers come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AgentSource {
    /// Files of this folder.
    Dir(PathBuf),
    /// This program, which tells of them.
    Exec(String),
    /// Keys of this store.
    Etcd(EtcdAddress),
}

impl std::fmt::Display for AgentSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Dir(path) => write!(f, "dir:{}", path.display()),
            Self::Exec(program) => write!(f, "exec:{program}"),
            Self::Etcd(address) => write!(f, "etcd:{address}"),
        }
    }
}

fn source(text: &str) -> Result<AgentSource, String> {
    match text.split_once(':') {
        Some(("dir", path)) if path.starts_with('/') => Ok(AgentSource::Dir(path.into())),
        Some(("dir", _)) => {
            Err("expected the whole path of a folder, as dir:/etc/wireguard/wg0.peers".into())
        }
        Some(("exec", program)) if program.starts_with('/') => {
            Ok(AgentSource::Exec(program.to_owned()))
        }
        Some(("exec", _)) => {
            Err("expected the whole path of a program, as exec:/usr/local/bin/peers".into())
        }
        Some(("etcd", address)) => address.parse().map(AgentSource::Etcd),
        _ => Err("expected dir:PATH, exec:PROGRAM or etcd:URL[,URL...]/PREFIX".into()),
    }
}
