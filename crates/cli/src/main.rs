//! The `adit` command.

#![forbid(unsafe_code)]
// Printing panics where the reader has gone.
#![warn(clippy::print_stderr, clippy::print_stdout)]

mod agent;
mod call;
mod check;
mod cli;
mod completions;
mod demo;
mod events;
mod failure;
mod helper;
mod keys;
mod man;
mod metrics;
mod networks;
mod proxy;
mod quick;
mod resolver;
mod run;
mod show;
mod steer;
mod systemd;
mod threads;
mod top;
mod tune;
mod upgrade;
mod view;
mod watched;
mod why;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use cli::{Cli, Command, PeerCommand};
use failure::{Context, Result, say};

fn main() -> ExitCode {
    if let Ok(name) = std::env::var("ADIT_AEAD") {
        adit_aead::prefer(&name);
    }
    // No commands, since no person types them.
    let mut arguments = std::env::args_os().skip(1);
    let served = match arguments.next() {
        Some(argument) if argument == resolver::ARGUMENT => {
            let more: Vec<_> = arguments.collect();
            let has = |option: &str| more.iter().any(|argument| argument == option);
            let sandbox = !has(resolver::WITHOUT_SANDBOX);
            Some(match has(resolver::LOOK_UP) {
                true => resolver::look_up_again(sandbox),
                false => resolver::serve(sandbox),
            })
        }
        Some(argument) if argument == proxy::tunnel::ARGUMENT => {
            let served = adit_proxy::kernel::serve_child();
            Some(served.context(|| "cannot make sockets for a proxy".into()))
        }
        Some(argument) if argument == helper::ARGUMENT => Some(helper::serve(arguments)),
        Some(argument) if argument == agent::program::ARGUMENT => {
            Some(agent::program::serve(arguments))
        }
        Some(argument) if argument == agent::filter::ARGUMENT => {
            Some(agent::filter::serve(arguments))
        }
        _ => None,
    };
    match served {
        Some(Ok(())) => return ExitCode::SUCCESS,
        Some(Err(failure)) => {
            failure.report();
            return ExitCode::FAILURE;
        }
        None => {}
    }
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
            return match error.use_stderr() {
                true if word == "why" => ExitCode::from(why::NOT_LOOKED),
                true if word != "run" && cli::is_command(&word) => ExitCode::from(2),
                true => ExitCode::FAILURE,
                false => ExitCode::SUCCESS,
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
            // Before it exists.
            let is_told =
                std::io::stderr().is_terminal() && !args.said.quiet && !run::is_meant(&args);
            run::run(&args)?;
            if is_told {
                say!(
                    "adit: made the interface {name}, without keys and peers yet, and started its process: `wg setconf {name} \
                     FILE` configures it, `adit up FILE` would have done all at once, `ip link delete {name}` ends it"
                );
            }
            Ok(ExitCode::SUCCESS)
        }
        (Some(Command::Run(args)), _) => {
            // One in the foreground, and one that another process starts, has a log.
            let is_told = std::io::stderr().is_terminal() && !args.foreground && !args.background;
            run::run(&args)?;
            if is_told {
                let names = args.interfaces.join(" ");
                args.said.say(format_args!(
                    "{names}: a process serves what has no keys and peers yet: `wg setconf {} FILE` configures it, `ip link \
                     delete {0}` ends it",
                    args.interfaces[0]
                ));
            }
            Ok(ExitCode::SUCCESS)
        }
        (None, None) => failure::bail!(Mistake, "nothing to do: see `adit --help`"),
        (Some(Command::Init(args)), _) => quick::init(&args).map(done),
        (Some(Command::Up(args)), _) => quick::up(&args).map(done),
        (Some(Command::Down(args)), _) => match (args.blocked, args.process) {
            (true, _) => quick::unblock(&args.file),
            (_, true) => upgrade::end(&args.file.conf.conf),
            _ => quick::down(&args.file, args.said),
        }
        .map(done),
        (Some(Command::Upgrade(args)), _) => upgrade::upgrade(&args).map(done),
        (Some(Command::Tune(args)), _) => tune::tune(&args).map(done),
        (Some(Command::Call(args)), _) => call::call(&args).map(done),
        (Some(Command::Steer(args)), _) => steer::steer(&args).map(done),
        (Some(Command::Save(args)), _) => quick::save(&args).map(done),
        (Some(Command::Sync(args)), _) => quick::sync_command(&args).map(done),
        (Some(Command::NewPeer(args)), _) => quick::new_peer(&args).map(done),
        (Some(Command::Add(args)), _) => quick::add(&args).map(done),
        (Some(Command::Remove(args)), _) => quick::remove(&args).map(done),
        (Some(Command::Peers(args)), _) => quick::peers(&args).map(done),
        (Some(Command::Peer(command)), _) => peer(command).map(done),
        (Some(Command::Edit(args)), _) => quick::edit(&args).map(done),
        (Some(Command::Check(args)), _) => check::check(&args),
        (Some(Command::Strip(args)), _) => quick::strip(&args).map(done),
        (Some(Command::Show(args)), _) => show::show(&args).map(done),
        (Some(Command::Why(args)), _) => why::why(&args),
        (Some(Command::Top(args)), _) => top::top(&args).map(done),
        (Some(Command::Metrics(args)), _) => metrics::metrics(&args).map(done),
        (Some(Command::Events(args)), _) => events::events(&args).map(done),
        (Some(Command::Agent(args)), _) => agent::agent(&args),
        (Some(Command::Proxy(args)), _) => proxy::proxy(&args),
        (Some(Command::Genkey), _) => keys::genkey().map(done),
        (Some(Command::Genpsk), _) => keys::genpsk().map(done),
        (Some(Command::Pubkey), _) => keys::pubkey().map(done),
        (Some(Command::Demo(args)), _) => demo::demo(&args).map(done),
        (Some(Command::Completions { shell, peers }), _) => {
            completions::print(shell, peers.as_deref()).map(done)
        }
        (Some(Command::Man { dir: Some(dir), .. }), _) => man::write_to(dir).map(done),
        (Some(Command::Man { command, .. }), _) => man::print(command.as_deref()).map(done),
    }
}

fn peer(command: PeerCommand) -> Result<()> {
    match command {
        PeerCommand::Show(args) => quick::show_peer(&args),
        PeerCommand::Rename(args) => quick::rename(&args),
        PeerCommand::Disable(args) => quick::disable(&args),
        PeerCommand::Enable(args) => quick::enable(&args),
        PeerCommand::Limit(args) => quick::limit(&args),
        PeerCommand::Quota(args) => quick::quota(&args),
        PeerCommand::Expire(args) => quick::expire(&args),
        PeerCommand::Rekey(args) => quick::rekey(&args),
        PeerCommand::Remove(args) => quick::remove(&args),
    }
}
