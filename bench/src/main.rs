//! `adit-lab`: the evidence behind what Adit claims. Each experiment is one command, and everybody
//! can run it again.

#![forbid(unsafe_code)]

mod aead;
mod agree;
mod checksum;
mod compare;
mod daemon;
mod document;
mod embed;
mod fleet;
mod gateway;
mod generator;
mod goals;
mod hostile;
mod hosts;
mod idle;
mod implementation;
mod install;
mod ipsec;
mod measure;
mod metric;
mod output;
mod page;
mod pair;
mod profile;
mod report;
mod reproduce;
mod rounds;
mod samples;
mod sandbox;
mod scale;
mod sites;
mod soak;
mod spec;
mod stats;
mod summary;
mod tables;
mod targets;
mod threads;
mod tools;
mod upgrade;

use std::error::Error;

use clap::{Parser, Subcommand};

use implementation::Implementation;
use sandbox::Failure;

/// The evidence: benchmarks of Adit against everything else, in one command each.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Compare(compare::CompareArgs),
    Gateway(gateway::GatewayArgs),
    Scale(scale::ScaleArgs),
    Reproduce(reproduce::ReproduceArgs),
    Hostile(hostile::HostileArgs),
    Soak(soak::SoakArgs),
    Idle(idle::IdleArgs),
    Upgrade(upgrade::UpgradeArgs),
    Chart(page::ChartArgs),
    Report(page::ReportArgs),
    Agree(agree::AgreeArgs),
    Summary(summary::SummaryArgs),
    Spec(spec::SpecArgs),
    Profile(profile::ProfileArgs),
    Aead(aead::AeadArgs),
    Embed(embed::EmbedArgs),
    Fleet(fleet::FleetArgs),
    #[command(hide = true)]
    EmbedDevice(embed::DeviceArgs),
    #[command(hide = true)]
    EmbedNet(embed::NetArgs),
    /// For `embed`.
    #[command(hide = true)]
    EmbedSocks(embed::SocksArgs),
    /// Builds the other implementations that are missing, and prints where they are.
    Peers,
}

fn main() {
    let done: Result<(), Box<dyn Error>> = match Cli::parse().command {
        Command::Compare(args) => sandbox::run(|| compare::run(&args)).map_err(plain),
        Command::Gateway(args) => sandbox::run(|| gateway::run(&args)).map_err(plain),
        Command::Scale(args) if args.needs_root() => {
            sandbox::run(|| scale::run(&args)).map_err(plain)
        }
        Command::Scale(args) => scale::run(&args).map_err(plain),
        Command::Reproduce(args) => sandbox::run(|| reproduce::run(&args)).map_err(plain),
        Command::Hostile(args) => sandbox::run(|| hostile::run(&args)).map_err(plain),
        Command::Idle(args) => sandbox::run(|| idle::run(&args)).map_err(plain),
        Command::Soak(args) => sandbox::run(|| soak::run(&args)).map_err(plain),
        Command::Upgrade(args) => sandbox::run(|| upgrade::run(&args)).map_err(plain),
        Command::Chart(args) => page::chart(&args),
        Command::Report(args) => page::run(&args),
        Command::Agree(args) => agree::run(&args),
        Command::Summary(args) => summary::run(&args),
        Command::Spec(args) => spec::run(&args),
        Command::Profile(args) => sandbox::run(|| profile::run(&args)).map_err(plain),
        Command::Aead(args) => aead::run(args),
        Command::Embed(args) if args.needs_root() => {
            sandbox::run(|| embed::run(&args)).map_err(plain)
        }
        Command::Embed(args) => embed::run(&args).map_err(plain),
        Command::Fleet(args) => sandbox::run(|| fleet::run(&args)).map_err(plain),
        Command::EmbedDevice(args) => embed::run_device(&args).map_err(plain),
        Command::EmbedNet(args) => embed::run_net(&args).map_err(plain),
        Command::EmbedSocks(args) => embed::run_socks(&args).map_err(plain),
        Command::Peers => peers(),
    };
    if let Err(failure) = done {
        eprintln!("adit-lab: {failure}");
        std::process::exit(1);
    }
}

fn plain(failure: Failure) -> Box<dyn Error> {
    failure
}

fn peers() -> Result<(), Box<dyn Error>> {
    for who in Implementation::PEERS {
        let peer = install::peer(who).map_err(plain)?;
        let binary = peer.binary.unwrap_or_default();
        let (name, binary) = (who.name(), binary.display());
        output::print(&format!("{name}\t{}\t{binary}\n", peer.version))?;
    }
    Ok(())
}
