//! The `adit` command.

#![forbid(unsafe_code)]
// Printing panics where the reader has gone.
#![warn(clippy::print_stderr, clippy::print_stdout)]

mod cli;
mod demo;
mod failure;
mod keys;
mod man;
mod quick;
mod run;
mod show;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use cli::{Cli, Command};
use failure::{Result, say};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version come this way, too; any other is wrong usage, for which wireguard-go
            // ends with 1.
            let word = std::env::args_os().nth(1).unwrap_or_default();
            let word = word.to_string_lossy();
            let is_interface = !word.starts_with('-') && !cli::is_command(&word);
            if error.kind() == ErrorKind::ArgumentConflict && is_interface {
                // clap would speak of a subcommand that the user did not type.
                say!("adit: nothing may follow {word}, the interface to create: see `adit --help`");
            } else {
                let _ = error.print();
            }
            if error.use_stderr()
                && let Some(meant) = cli::command_near(&word)
            {
                say!("There is no command {word}; perhaps `adit {meant}` is meant.");
            }
            return if error.use_stderr() {
                ExitCode::FAILURE
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    match dispatch(cli) {
        Ok(code) => code,
        Err(failure) => {
            failure.report();
            ExitCode::FAILURE
        }
    }
}

fn dispatch(cli: Cli) -> Result<ExitCode> {
    let done = |()| ExitCode::SUCCESS;
    match (cli.command, cli.run) {
        (None, Some(args)) => {
            let name = &args.interfaces[0];
            if args.interfaces.len() > 1 {
                let next = &args.interfaces[1];
                let hint = match cli::command_near(name) {
                    Some(meant) => format!("perhaps `adit {meant}` is meant"),
                    None if cli::is_command(next) => {
                        format!("perhaps `adit {next} {name}` is meant")
                    }
                    None => {
                        let names = args.interfaces.join(" ");
                        format!("`adit run {names}` has one process serve several")
                    }
                };
                failure::bail!(
                    Mistake,
                    "nothing may follow {name}, the interface to create; {hint}"
                );
            }
            if let Some(meant) = cli::misspelt(name)
                && !run::is_meant(&args)
            {
                failure::bail!(
                    Mistake,
                    "there is no command {name}; perhaps `adit {meant}` is meant. `adit run {name}` makes an interface of \
                     that name"
                );
            }
            run::run(&args).map(done)
        }
        (Some(Command::Run(args)), _) => run::run(&args).map(done),
        (None, None) => failure::bail!(Mistake, "nothing to do: see `adit --help`"),
        (Some(Command::Up(args)), _) => quick::up(&args).map(done),
        (Some(Command::Down(args)), _) => quick::down(&args).map(done),
        (Some(Command::Save(args)), _) => quick::save(&args).map(done),
        (Some(Command::Sync(args)), _) => quick::sync(&args).map(done),
        (Some(Command::Strip(args)), _) => quick::strip(&args).map(done),
        (Some(Command::Show(args)), _) => show::show(&args).map(done),
        (Some(Command::Genkey), _) => keys::genkey().map(done),
        (Some(Command::Genpsk), _) => keys::genpsk().map(done),
        (Some(Command::Pubkey), _) => keys::pubkey().map(done),
        (Some(Command::Demo(args)), _) => demo::demo(&args).map(done),
        (Some(Command::Completions { shell }), _) => cli::print_completions(shell).map(done),
        (Some(Command::Man { dir: Some(dir), .. }), _) => man::write_to(dir).map(done),
        (Some(Command::Man { command, .. }), _) => man::print(command.as_deref()).map(done),
    }
}
