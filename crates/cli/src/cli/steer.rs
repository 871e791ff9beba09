//! The arguments of `adit steer`.

use std::net::IpAddr;

use clap::Args;

use super::files::OutputArgs;
use super::gateway::gateway_id;
use super::values::interface_name;

#[derive(Args)]
pub(crate) struct SteerArgs {
    /// The interface, whose process was started with --gateway-id
    #[arg(value_name = "INTERFACE", value_parser = interface_name)]
    pub(crate) interface: String,
    /// An address that the gateways share, which peers have as their endpoint; repeatable
    #[arg(long, value_name = "ADDRESS", required_unless_present = "off")]
    pub(crate) address: Vec<IpAddr>,
    /// A device that datagrams of peers come in by; repeatable
    #[arg(long, value_name = "DEVICE", required_unless_present = "off", value_parser = interface_name)]
    pub(crate) device: Vec<String>,
    /// A gateway: its number, an own address of it on a link that both have, and the device of that
    /// link, by default the first --device. Repeat it for each gateway and for IPv6. That of this host
    /// is among them, so that all gateways have the same command
    #[arg(long, value_name = "ID=ADDRESS[@DEVICE]", required_unless_present = "off", value_parser = gateway)]
    pub(crate) gateway: Vec<GatewayArg>,
    /// Remove the rules
    #[arg(long, conflicts_with_all = ["address", "device", "gateway"])]
    pub(crate) off: bool,
    #[command(flatten)]
    pub(crate) said: OutputArgs,
}

/// A gateway, and how to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GatewayArg {
    pub(crate) id: u8,
    pub(crate) address: IpAddr,
    pub(crate) device: Option<String>,
}

fn gateway(text: &str) -> Result<GatewayArg, String> {
    let expected = "expected ID=ADDRESS or ID=ADDRESS@DEVICE, as 2=10.0.0.2";
    let (id, place) = text.split_once('=').ok_or(expected)?;
    let (address, device) = match place.split_once('@') {
        Some((address, device)) => (address, Some(interface_name(device)?)),
        None => (place, None),
    };
    Ok(GatewayArg {
        id: gateway_id(id)?,
        address: address.parse().map_err(|_| expected)?,
        device,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_is_a_number_an_address_and_perhaps_a_device() {
        let of = |id, address: &str, device: Option<&str>| GatewayArg {
            id,
            address: address.parse().expect("an address"),
            device: device.map(str::to_owned),
        };
        assert_eq!(gateway("0=10.0.0.2"), Ok(of(0, "10.0.0.2", None)));
        let tunnel = of(31, "fd00::2", Some("ipip2"));
        assert_eq!(gateway("31=fd00::2@ipip2"), Ok(tunnel));
        for (wrong, expected) in [
            ("10.0.0.2", "expected ID=ADDRESS"),
            ("2=gw", "expected ID=ADDRESS"),
            ("2=10.0.0.2:7", "expected ID=ADDRESS"),
            ("32=10.0.0.2", "from 0 to 31"),
            ("-1=10.0.0.2", "from 0 to 31"),
            ("2=10.0.0.2@", "name"),
        ] {
            let error = gateway(wrong).expect_err(wrong);
            assert!(error.contains(expected), "{wrong}: {error}");
        }
    }
}
