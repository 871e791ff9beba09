//! The kernel's ESP beside the kernel's WireGuard, in a guest that QEMU emulates: what they reach is that
//! of the emulation, and only their ratio tells something.
//!
//! The guest is that of the tests (`scripts/guest`), with iperf3 and another PID 1, `emulated-init`: two
//! network namespaces with both tunnels between them. It powers off when it has measured.

use std::path::PathBuf;
use std::time::Duration;

use adit_testbed::process;

use super::ending;
use super::results::Values;
use crate::sandbox::Failure;
use crate::tools::{self, Flow, Tool};
use crate::{hosts, install};

/// The subject's name.
pub(super) const NAME: &str = "emulated";
/// What carries TCP in the guest.
pub(super) const LOADS: [(&str, &str); 3] = [
    ("link", "no tunnel"),
    ("wireguard", "the kernel's WireGuard"),
    ("esp", "the kernel's ESP, AES-GCM-128"),
];
/// The last of these over the one before.
pub(super) const RATIO: &str = "ratio";

const INIT: &str = include_str!("emulated-init");
/// How long the guest may take to start and to end, and for each load besides its seconds.
const LIMIT: Duration = Duration::from_secs(180);
const RUNS: u32 = 5;
const NEEDED: [Tool; 2] = [
    ("qemu-system-x86_64", "--version", "qemu-system-x86"),
    ("busybox", "--help", "busybox-static"),
];

/// A guest that can be started.
pub(super) struct Guest {
    /// With its kernel and initramfs.
    image: PathBuf,
    /// Of its Linux.
    pub(super) release: String,
}

/// The guest, if `scripts/guest` has built it.
pub(super) fn find() -> Result<Guest, Failure> {
    tools::require(&NEEDED)?;
    let image = std::env::var_os("ADIT_GUEST").map(PathBuf::from);
    let image = image.or_else(|| Some(install::repository()?.join("target/guest")));
    let image = image.ok_or("the repository with its guest is not here")?;
    let release = std::fs::read_to_string(image.join("release"))
        .map_err(|_| format!("{} holds no guest: run scripts/guest", image.display()))?;
    Ok(Guest {
        image: std::fs::canonicalize(image)?,
        release: release.trim().to_owned(),
    })
}

impl Guest {
    /// Starts it, and has each load run for so many seconds with each congestion control.
    pub(super) fn measure(
        &self,
        seconds: u32,
        congestion: &[String],
        values: &mut Values,
    ) -> Result<(), Failure> {
        // Its /run goes with it, and it has no network.
        let host = hosts::host()?;
        let init = INIT.replace("SECONDS", &seconds.to_string());
        let init = init.replace("CONGESTION", &congestion.join(" "));
        host.run(move || std::fs::write("/run/init", init))?;
        let initrd = self.image.join("initrd");
        let pack = format!(
            "mkdir -p /run/tree/bin; cp /run/init /run/tree; chmod 755 /run/tree/init
             cp \"$(command -v iperf3)\" /run/tree/bin
             ldd /run/tree/bin/iperf3 | grep -oE '/[^ ]+' | while read -r file; do
               mkdir -p \"/run/tree$(dirname \"$file\")\"; cp -L \"$file\" \"/run/tree$file\"
             done
             cp '{}' /run/initrd; cd /run/tree; find . | busybox cpio -o -H newc >> /run/initrd",
            initrd.display()
        );
        host.output("sh", &["-ec", &pack], Duration::from_secs(60))?;
        let kernel = self.image.join("vmlinuz");
        let words = "-accel tcg -cpu max -m 512 -nographic -nodefaults -no-reboot -initrd /run/initrd \
                     -serial file:/run/console -serial stdio -append";
        // Where the machine is busy, timers of the emulation do not pass the kernel's check.
        let append = "console=ttyS0 quiet panic=-1 no_timer_check";
        let (flag, kernel) = ("-kernel", kernel.to_string_lossy());
        let arguments: Vec<&str> = words
            .split_whitespace()
            .chain([append, flag, &kernel])
            .collect();
        let qemu = host.spawn(process::command("qemu-system-x86_64", &arguments))?;
        let runs = RUNS * u32::try_from(congestion.len())?;
        let said = qemu.output(LIMIT + Duration::from_secs(seconds.into()) * 2 * runs)?;
        let flows = flows(&said)?;
        for control in congestion {
            let mut rates = Vec::new();
            for (name, _) in LOADS {
                let id = id(name, control);
                let rate = rate(&flows, &id).ok_or_else(|| format!("no value for {id}"))?;
                values.push((id, rate));
                rates.push(rate);
            }
            values.push((id(RATIO, control), rates[2] / rates[1]));
        }
        Ok(())
    }
}

/// Of a load with this congestion control.
pub(super) fn id(name: &str, congestion: &str) -> String {
    format!("emulated.{name}{}", ending(congestion))
}

/// The mean rate of a measure's flows in Mb/s.
fn rate(flows: &[(String, Flow)], id: &str) -> Option<f64> {
    let of = flows
        .iter()
        .filter(|(name, _)| id.strip_prefix("emulated.") == Some(name));
    let (mut bytes, mut seconds) = (0.0, 0.0);
    for (_, flow) in of {
        bytes += flow.bytes;
        seconds += flow.seconds;
    }
    (seconds > 0.0).then(|| bytes * 8.0 / 1e6 / seconds)
}

/// What the guest measured, by name.
fn flows(said: &str) -> Result<Vec<(String, Flow)>, Failure> {
    let Some((said, _)) = said.split_once("@@@ done") else {
        let last = said.trim().lines().last().unwrap_or("it said nothing");
        return Err(format!("the guest did not measure all: {last}").into());
    };
    let parts = said.split("@@@ ").skip(1);
    parts
        .map(|part| {
            let (name, report) = part.split_once('\n').ok_or("the guest sent no report")?;
            Ok((name.trim().to_owned(), tools::parse_iperf(report)?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(bytes: f64) -> String {
        format!(
            "{{\"end\": {{\"sum_sent\": {{\"bytes\": {bytes}, \"seconds\": 2, \"retransmits\": 0}},
              \"sum_received\": {{\"bytes\": {bytes}, \"seconds\": 2}}}}}}\r\n"
        )
    }

    #[test]
    fn loads_of_the_guest_are_averaged_by_name() {
        let mut said = "1 packets transmitted\r\n".to_owned();
        for (name, bytes) in [
            ("esp", 1e6),
            ("wireguard", 5e6),
            ("esp", 2e6),
            ("esp-bbr", 4e6),
        ] {
            said += &format!("@@@ {name}\r\n{}", report(bytes));
        }
        let flows = flows(&(said.clone() + "@@@ done\r\n")).unwrap();
        assert_eq!(rate(&flows, "emulated.esp"), Some(6.0));
        assert_eq!(rate(&flows, "emulated.wireguard"), Some(20.0));
        assert_eq!(rate(&flows, &id("esp", "bbr")), Some(16.0));
        assert_eq!(rate(&flows, &id("link", "cubic")), None);
        // Without its end the guest has failed.
        let why = super::flows(&(said + "modprobe: no module\n")).unwrap_err();
        assert!(why.to_string().contains("no module"), "{why}");
    }

    #[test]
    fn the_guest_measures_what_the_tables_have() {
        for (name, _) in LOADS {
            assert!(INIT.contains(&format!("\n  load {name} ")), "{name}");
        }
        assert_eq!(INIT.matches("\n  load ").count(), RUNS as usize);
        assert!(INIT.contains("-t SECONDS") && INIT.contains("in CONGESTION;"));
    }
}
