//! `adit steer`: rules of nftables with which one of several gateways, which have one key and one address,
//! forwards what belongs to a session of another one.

use std::io::ErrorKind;

use adit_ctl::status;
use adit_netlink::{Family, Netlink, Steering, SteeringTarget};
use serde::Serialize;

use crate::cli::{GatewayArg, OutputArgs, SteerArgs};
use crate::failure::{Context, Failure, Result, bail, say};
use crate::quick;

pub(crate) fn steer(args: &SteerArgs) -> Result<()> {
    quick::require_rights()?;
    let name = &args.interface;
    let table = format!("adit-steer-{name}");
    if args.off {
        let removed = Steering::remove(&table);
        let removed = removed.context(|| format!("cannot remove the rules of {name}"))?;
        let text = match removed {
            true => format!("{name} gets what comes to this host, as its rules are removed"),
            false => format!("{name} has no rules: nothing to do"),
        };
        return tell(args, &SteerDone::of(name, None, &[]), &text);
    }
    let (own, port) = process(name)?;
    check(args, own)?;
    let netlink = quick::open_netlink()?;
    let others = targets(&netlink, args, own)?;
    let steering = Steering {
        table: &table,
        devices: &args.device,
        addresses: &args.address,
        port,
        own,
        others: &others,
    };
    let set = steering.set().map_err(|error| match error.kind() {
        ErrorKind::Unsupported | ErrorKind::NotFound => Failure::State(format!(
            "{error}: this takes nf_tables with `fwd`, of modules nf_tables and nft_fwd_netdev"
        )),
        _ => Failure::State(error.to_string()),
    });
    set?;
    let mut ids: Vec<u8> = others.iter().map(|other| other.id).collect();
    ids.sort_unstable();
    ids.dedup();
    let text = format!(
        "{name} is gateway {own}, and forwards to {}: `nft list table netdev {table}` shows the rules, `adit steer {name} \
         --off` removes them",
        list(&ids)
    );
    tell(args, &SteerDone::of(name, Some(own), &ids), &text)
}

/// The number of this gateway, and the port of the interface.
fn process(name: &str) -> Result<(u8, u16)> {
    let interface = status::fetch(name).map_err(|error| {
        let is_unserved = [ErrorKind::NotFound, ErrorKind::ConnectionRefused];
        Failure::State(match is_unserved.contains(&error.kind()) {
            true => format!(
                "no process serves {name}: `adit up --gateway-id N {name}` starts one that is gateway N"
            ),
            false => format!("cannot ask the process of {name}: {error}"),
        })
    })?;
    let Some(own) = interface.engine.as_ref().and_then(|it| it.gateway_id) else {
        bail!(
            State,
            "{name} has no number among the gateways: take it down, and up with `adit up --gateway-id N {name}`"
        );
    };
    if interface.listen_port == 0 {
        bail!(
            State,
            "{name} has no port: is it down? Its file should have a ListenPort, the same on all gateways"
        );
    }
    Ok((own, interface.listen_port))
}

/// Whether the gateways that are named can be meant.
fn check(args: &SteerArgs, own: u8) -> Result<()> {
    let name = &args.interface;
    for (at, one) in args.gateway.iter().enumerate() {
        let family = Family::of(one.address);
        let same = (args.gateway[..at].iter())
            .find(|other| other.id == one.id && Family::of(other.address) == family);
        if let Some(other) = same {
            bail!(
                Mistake,
                "gateway {} has two addresses, {} and {}: each gateway has a number of its own, and one address of a family",
                one.id,
                other.address,
                one.address
            );
        }
    }
    if !args.gateway.iter().any(|one| one.id == own) {
        bail!(
            Mistake,
            "{name} is gateway {own}, and no --gateway has this number: name all gateways, this one too, on each of them"
        );
    }
    let others = || args.gateway.iter().filter(|one| one.id != own);
    if others().next().is_none() {
        bail!(
            Mistake,
            "{name} is the only gateway: `adit steer {name} --off` removes the rules"
        );
    }
    for address in &args.address {
        let family = Family::of(*address);
        let reached = |id| others().any(|one| one.id == id && Family::of(one.address) == family);
        if let Some(missing) = others().find(|one| !reached(one.id)) {
            bail!(
                Mistake,
                "gateway {} has no address of the family of {address}: name that, too, with a further --gateway {0}=…",
                missing.id
            );
        }
    }
    Ok(())
}

/// The other gateways, by devices that are here.
fn targets(netlink: &Netlink, args: &SteerArgs, own: u8) -> Result<Vec<SteeringTarget>> {
    let index = |device: &str| {
        let link = netlink.link(device);
        link.map(|link| link.index)
            .map_err(|error| match error.kind() {
                ErrorKind::NotFound => Failure::Mistake(format!("there is no device {device}")),
                _ => Failure::State(error.to_string()),
            })
    };
    for device in &args.device {
        index(device)?;
    }
    let mut targets = Vec::new();
    for one in args.gateway.iter().filter(|one| one.id != own) {
        let device = one.device.as_ref().or(args.device.first());
        let device = device.map_or("", String::as_str);
        let found = index(device)?;
        check_link(netlink, one, device, found)?;
        targets.push(SteeringTarget {
            id: one.id,
            address: one.address,
            device: found,
        });
    }
    Ok(targets)
}

/// A rule sends to a neighbour, and asks no routes.
fn check_link(netlink: &Netlink, to: &GatewayArg, device: &str, index: u32) -> Result<()> {
    let GatewayArg { id, address, .. } = to;
    let route = netlink.route_get(*address, None, 0, Some(index));
    let route = route.context(|| format!("cannot reach gateway {id} by {device}"))?;
    if route.local {
        bail!(
            Mistake,
            "{address} is an address of this host, which is another gateway than {id}"
        );
    }
    if let Some(router) = route.gateway {
        bail!(
            State,
            "{address} is no neighbour by {device}, but behind {router}: make a tunnel to gateway {id}, as with `ip link add \
             ipip{id} type ipip remote {address}`, and name it: --gateway {id}={address}@ipip{id}"
        );
    }
    Ok(())
}

fn list(ids: &[u8]) -> String {
    let ids: Vec<String> = ids.iter().map(u8::to_string).collect();
    match ids.split_last() {
        Some((last, [])) => format!("gateway {last}"),
        Some((last, others)) => format!("gateways {} and {last}", others.join(", ")),
        None => "no gateway".to_owned(),
    }
}

fn tell(args: &SteerArgs, done: &SteerDone<'_>, text: &str) -> Result<()> {
    match args.said {
        OutputArgs { quiet: true, .. } => Ok(()),
        OutputArgs { json: true, .. } => quick::print_json(done),
        _ => {
            say!("adit: {text}");
            Ok(())
        }
    }
}

/// What was done, as JSON.
#[derive(Serialize)]
struct SteerDone<'a> {
    schema: u32,
    interface: &'a str,
    done: &'a str,
    /// The number of this gateway.
    gateway_id: Option<u8>,
    /// Those that it forwards to.
    gateways: &'a [u8],
}

impl<'a> SteerDone<'a> {
    fn of(interface: &'a str, own: Option<u8>, gateways: &'a [u8]) -> Self {
        Self {
            schema: 1,
            interface,
            done: if own.is_some() { "steered" } else { "removed" },
            gateway_id: own,
            gateways,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn args(words: &str) -> SteerArgs {
        let all = format!("adit steer wg0 --device eth0 {words}");
        let cli = Cli::try_parse_from(all.split_whitespace()).expect("arguments");
        match cli.command {
            Some(Command::Steer(args)) => args,
            _ => panic!("another command"),
        }
    }

    #[test]
    fn gateways_that_cannot_be_meant_are_refused_with_the_reason() {
        let both = "--gateway 1=10.0.0.1 --gateway 2=10.0.0.2";
        for (words, expected) in [
            (format!("{both} --address 192.0.2.1"), None),
            (
                format!("{both} --gateway 2=fd00::2 --address 192.0.2.1 --address 2001:db8::1"),
                None,
            ),
            (
                format!("{both} --gateway 2=10.0.0.3 --address 192.0.2.1"),
                Some("gateway 2 has two addresses, 10.0.0.2 and 10.0.0.3"),
            ),
            (
                "--gateway 2=10.0.0.2 --gateway 3=10.0.0.3 --address 192.0.2.1".into(),
                Some("wg0 is gateway 1, and no --gateway has this number"),
            ),
            (
                "--gateway 1=10.0.0.1 --address 192.0.2.1".into(),
                Some("wg0 is the only gateway"),
            ),
            (
                format!("{both} --address 2001:db8::1"),
                Some("gateway 2 has no address of the family of 2001:db8::1"),
            ),
        ] {
            let checked = check(&args(&words), 1).map_err(|failure| failure.to_string());
            match (expected, &checked) {
                (None, Ok(())) => {}
                (Some(expected), Err(error)) if error.contains(expected) => {}
                _ => panic!("{words}: {checked:?}"),
            }
        }
    }

    #[test]
    fn json_says_who_forwards_to_whom() {
        let json = serde_json::to_string(&SteerDone::of("wg0", Some(1), &[2, 3])).expect("JSON");
        let expected =
            r#"{"schema":1,"interface":"wg0","done":"steered","gateway_id":1,"gateways":[2,3]}"#;
        assert_eq!(json, expected);
        assert_eq!(list(&[2]), "gateway 2");
        assert_eq!(list(&[2, 3, 4]), "gateways 2, 3 and 4");
    }
}
