//! Examples of the pages that have nothing else of their own.

/// Commands and what they do.
pub(super) fn of(page: &str) -> &'static [(&'static str, &'static str)] {
    match page {
        "adit" | "adit-run" => &[
            ("adit up wg0", "Brings up /etc/wireguard/wg0.conf."),
            (
                "adit wg0 && wg setconf wg0 wg0.conf",
                "Creates an interface and configures it with `wg`.",
            ),
            (
                "adit run wg0 wg1 wg2",
                "Creates three interfaces in one process.",
            ),
            (
                "LOG_LEVEL=verbose adit -f wg0",
                "Prints on standard error why a peer does not connect.",
            ),
        ],
        "adit-up" => &[
            ("adit up wg0", "Brings up /etc/wireguard/wg0.conf."),
            (
                "adit up --dry-run ./wg1.conf",
                "Prints what would be done for another file, and does nothing.",
            ),
            (
                "adit up --foreground wg0",
                "The command of a container, or of a unit: it stays until the tunnel ends.",
            ),
        ],
        "adit-down" => &[("adit down wg0", "Takes down what `adit up wg0` brought up.")],
        "adit-upgrade" => &[
            (
                "make install && adit upgrade",
                "All running tunnels go on with the new program.",
            ),
            (
                "adit upgrade --if-replaced wg0",
                "Does nothing if wg0 has this very program.",
            ),
        ],
        "adit-tune" => &[
            (
                "adit tune wg0 --shards 4",
                "Up to four threads process packets.",
            ),
            (
                "adit tune wg0 --policy inline",
                "One thread processes the packets of an interface.",
            ),
        ],
        "adit-call" => &[
            (
                "adit call wg0 --list | ssh standby 'cat > /run/wg0.endpoints'",
                "Tells another gateway where this one's peers are, from time to time.",
            ),
            (
                "adit call wg0 --endpoints /run/wg0.endpoints --from 192.0.2.100",
                "The command for keepalived's notify_master there: the address 192.0.2.100 has moved.",
            ),
            (
                "adit call wg0 --endpoints /run/wg0.endpoints --from 192.0.2.100 --when-present",
                "A service that does the same each time this address comes to this host.",
            ),
        ],
        "adit-steer" => &[
            (
                "adit steer wg0 --device eth0 --address 192.0.2.1 --gateway 1=10.0.0.1 --gateway 2=10.0.0.2",
                "The same command on both gateways.",
            ),
            ("adit steer wg0 --off", "Removes the rules."),
        ],
        "adit-save" => &[(
            "wg set wg0 listen-port 51900 && adit save wg0",
            "Changes the running interface, and then its file.",
        )],
        "adit-sync" => &[(
            "adit sync wg0",
            "Applies /etc/wireguard/wg0.conf as it is now.",
        )],
        "adit-add" => &[(
            "adit add wg0 xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg= --name laptop",
            "A laptop that made its own keys gets access, and a free address.",
        )],
        "adit-remove" => &[(
            "adit remove wg0 phone",
            "The telephone is gone: its key and its address are nobody's.",
        )],
        "adit-edit" => &[(
            "adit edit wg0",
            "Opens /etc/wireguard/wg0.conf in an editor.",
        )],
        "adit-check" => &[(
            "adit check ./wg0.conf",
            "Says what is wrong in a file before it is used.",
        )],
        "adit-strip" => &[(
            "adit strip wg0 | wg setconf wg0 /dev/stdin",
            "Gives `wg` what it understands of a file.",
        )],
        "adit-top" => &[
            ("adit top", "All interfaces, those that send most first."),
            (
                "adit top wg0 --sort drops",
                "One interface, and what it drops.",
            ),
        ],
        "adit-proxy" => &[
            (
                "adit proxy wg0 --socks 127.0.0.1:1080",
                "Programs that speak SOCKS5 get into the tunnel of /etc/wireguard/wg0.conf; the host has no interface wg0.",
            ),
            (
                "adit proxy -c wireproxy.conf --info 127.0.0.1:9080",
                "Does what a file of wireproxy says, and tells a monitor how it is.",
            ),
            (
                "adit proxy wg0 --forward tcp:8080=10.0.0.5:80",
                "Port 8080 of this host is port 80 of a host in the tunnel.",
            ),
        ],
        "adit-genkey" | "adit-pubkey" => &[(
            "adit genkey | tee private.key | adit pubkey > public.key",
            "A new pair of keys; `umask 077` first keeps others from reading them.",
        )],
        "adit-genpsk" => &[(
            "adit genpsk > preshared.key",
            "A key that two peers share besides their own.",
        )],
        "adit-demo" => &[(
            "adit demo --seconds 10",
            "Measures for longer, which gives steadier numbers.",
        )],
        "adit-completions" => &[(
            "adit completions bash > /etc/bash_completion.d/adit",
            "Completes commands, interfaces and peers in each new shell.",
        )],
        "adit-man" => &[
            ("adit man show | man -l -", "Reads adit-show(8)."),
            (
                "adit man --dir /usr/local/share/man/man8",
                "Installs all pages.",
            ),
        ],
        _ => &[],
    }
}
