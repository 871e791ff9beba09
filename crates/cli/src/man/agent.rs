//! The pages of `adit agent`.

use clap_mangen::roff::Roff;

use super::parts::{CONTROL_SOCKET, item, list, more, paragraph, see_also};
use crate::agent;

pub(super) fn page(roff: &mut Roff) {
    roff.control("SH", ["RECORDS"]);
    paragraph(
        roff,
        "A record is one `[Peer]` section as in wg(8), with the comments that name the peer and say what it may do \
         (adit-peer(8)): `# friendly_name`, `# Limit`, `# Quota` and `# Expires`. It has all of the peer's AllowedIPs, \
         and no secret: `PresharedKeyFile = NAME` names a file in the folder of `--psk-dir` that has the preshared key in \
         base64 and nothing else. A record with a private key, a warning of adit-check(8), or more than 64 KiB is refused.",
    );
    paragraph(
        roff,
        "Of two records with the same key, or with addresses that overlap, the one that was there first holds, and \
         of several that come together the first by name. So does a peer that the interface has from elsewhere, as \
         from its own file: a record with its key, or with the same AllowedIPs, is refused. A more specific one \
         takes its addresses, as in WireGuard. What is refused has a line in the log and in `adit agent status`; its \
         peer stays what it was, and the record is looked at again when what stood in its way is gone.",
    );
    roff.control("SH", ["SOURCES"]);
    item(
        roff,
        "dir:PATH",
        "A folder with a file `NAME.conf` for each peer. Changes take effect at once when a file is closed, renamed \
         or removed. The folder must be readable without root's rights, and links in it must stay in or below it. It \
         may be a ConfigMap of Kubernetes. A folder that is gone, cannot be read, or is another one than before and \
         empty, as where nothing is mounted, changes nothing.",
    );
    item(
        roff,
        "exec:PROGRAM",
        "A program, with the arguments behind `--`, that writes a line of JSON for each change: `{\"put\":RECORD}`, \
         `{\"delete\":\"KEY\"}`, and `{\"listed\":true}` once it has told of all. At `listed`, peers that only an \
         earlier run reported are removed. When it ends it is started again, after a pause that doubles from 250 \
         milliseconds to 30 seconds. Its standard error goes to the log, 20 lines a second at most, and it ends with \
         the agent. It runs with the agent's rights, outside of its sandbox. In the unit adit-agent@ it has no \
         network, unless a drop-in says `PrivateNetwork=no` and `RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6`.",
    );
    item(
        roff,
        "etcd:URL[,URL...]/PREFIX",
        "The keys of etcd 3.4 and later that begin with `PREFIX`, each with one RECORD, over its JSON gateway. A change \
         takes effect as soon as etcd reports it. When a member does not answer, the agent uses the next one, after 5 \
         seconds, or after 25 seconds in the middle of a watch. After a compaction, or when the store has lost revisions, \
         the agent lists all records again. While etcd cannot be read, nothing changes. An empty store with a new data \
         directory changes nothing either, until it has a record. The name of a record is its key without `PREFIX`: at \
         most 255 printable bytes, without a backslash.",
    );
    more(
        roff,
        "TLS and users",
        "for https, `--etcd-ca` names the authorities that sign the members' certificates. `--etcd-cert` and \
         `--etcd-key` name the agent's own certificate, if etcd wants one. If etcd has users, this certificate must have no \
         common name, or etcd's gateway refuses it. The agent reads these files when it starts. `ADIT_ETCD_USER` and \
         `ADIT_ETCD_PASSWORD` in the environment are its user, who needs only the right to read the keys. Over http, \
         anyone on the path can read the password and add peers. Names of members are looked up for each connection, as \
         resolv.conf(5) and nsswitch.conf(5) say. In the unit adit-agent@, etcd needs a drop-in with `PrivateNetwork=no` and `RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK`.",
    );
    more(
        roff,
        "Just in time",
        "with `--just-in-time`, the interface has only the peers that are there. The key of a record is `PREFIX` and \
         the peer's public key, as wg(8) prints it. When an unknown peer begins a handshake, the agent asks etcd for its \
         record, brings the peer, and begins a handshake with it where it is. A peer is removed 5 minutes after its last \
         handshake, or 90 seconds after it was brought if it had none. A peer with a quota stays. The gateway cannot \
         begin anything with a peer that is not there. Keys that etcd does not have are asked for again after 10 \
         seconds, or when their record comes. There are at most 100 such look-ups a second, 20 for one address.",
    );
    more(
        roff,
        "Several gateways",
        "with `--write-back PREFIX`, the agent writes to the key PREFIX and the public key of a peer when a session with it \
         begins, or it moves: the name of the gateway, the endpoint, and the times of the last initiations both ways. It \
         follows these keys, and keeps what all gateways wrote in `STATE/INTERFACE.endpoints`, the latest sessions first, \
         for `adit call --endpoints`. With `--just-in-time` it also brings their peers, which wait for the call. The file \
         is written once a second at most, and once in 10 seconds with 100,000 peers. It stays while etcd is away. A key \
         is removed half a day to a day after it was written. Times that are more than ten minutes ahead are not \
         believed. Each gateway needs a name of its own. This takes a user who may read and write these keys.",
    );
    paragraph(
        roff,
        "A RECORD as JSON is an object with `public_key`, `allowed_ips` (a list) and, where there are any, `name`, `endpoint`, \
         `preshared_key_file`, `persistent_keepalive`, `limit`, `quota`, `expires` and `allowed_ports` (a list), with the \
         values of a file.",
    );
    rules(roff);
    roff.control("SH", ["WHAT IS CHANGED"]);
    paragraph(
        roff,
        "The agent changes only the running interface, through its control socket. It does not change the file or \
         routes. Peers whose addresses are in no network of the interface need routes from elsewhere. Only \
         differences are sent. A peer stays at the address to which it has moved until its record has another \
         endpoint. An endpoint that is a name needs a process with `--names`, as `adit up` starts it. Only peers \
         that an agent brought are changed and removed: which those are is kept in `--state`, so that they are known \
         after a kill. Nothing is removed before the source was read whole. When the process of the interface ends, \
         or another program removes its peers, the agent brings them again; adit-sync(8) leaves them. One agent \
         serves an interface. When it ends, everything stays as it is. Peers that the interface does not take are \
         tried again every 30 seconds.",
    );
    files(roff);
    list(
        roff,
        "EXAMPLES",
        [
            (
                "adit agent wg0 --source dir:/etc/wireguard/wg0.peers",
                "Each file there is a peer of wg0, as long as it is there.",
            ),
            (
                "adit agent wg0 --source dir:/peers --psk-dir /keys",
                "Records in one folder, as a ConfigMap, and preshared keys in another, as a Secret.",
            ),
            (
                "adit agent wg0 --source dir:/etc/wireguard/wg0.peers --rules",
                "Peers open what the AllowedPorts of their records say.",
            ),
            (
                "adit agent wg0 --source exec:/usr/local/bin/peers -- --db vpn",
                "A program of one's own tells of the peers in a database.",
            ),
            (
                "adit agent wg0 --source etcd:https://etcd-0:2379,https://etcd-1:2379/wg0/ --etcd-ca ca.pem",
                "The peers are keys of etcd.",
            ),
            (
                "adit agent wg0 --source etcd:http://127.0.0.1:2379/wg0/ --just-in-time",
                "Each peer comes with its first handshake.",
            ),
            (
                "adit agent wg0 --source etcd:http://127.0.0.1:2379/wg0/ --write-back wg0-held/",
                "Other gateways learn which peers are here, for `adit call`.",
            ),
            (
                "adit agent status wg0",
                "How many peers it brought, and what is wrong with which records.",
            ),
        ],
    );
    see_also(
        roff,
        "adit(8), adit-peers(8), adit-peer(8), adit-up(8), adit-events(8), wg(8)",
    );
}

pub(super) fn status(roff: &mut Roff) {
    roff.control("SH", ["JSON"]);
    paragraph(
        roff,
        "`--json` prints one object. Fields may be added under the same `schema`; that one is removed or means something \
         else makes it 2.",
    );
    for (path, text) in agent::FIELDS {
        item(roff, path, text);
    }
    files(roff);
    list(
        roff,
        "EXAMPLES",
        [
            (
                "adit agent status wg0",
                "How many peers it brought, and what is wrong with which records.",
            ),
            (
                "adit agent status wg0 --json | jq -e '.is_running and .state == \"listed\" and .refused == 0'",
                "For a monitor: whether all is well.",
            ),
            (
                "adit agent status wg0 --follow --json | jq --unbuffered -r '.failure // empty'",
                "What goes wrong, as it happens.",
            ),
        ],
    );
    see_also(roff, "adit(8), adit-agent(8), adit-peers(8)");
}

fn rules(roff: &mut Roff) {
    roff.control("SH", ["RULES"]);
    paragraph(
        roff,
        "With `--rules`, a record may say what its peer may open through the gateway, and at the gateway itself: \
         `AllowedPorts = tcp/443, udp/53, 10.1.0.0/16 tcp/8000-8100, icmp`, as a line or a comment, or as JSON \
         `\"allowed_ports\":[\"tcp/443\",\"icmp\"]`. A rule is a protocol (`tcp`, `udp`, `icmp` for ICMP and ICMPv6, or `any`), \
         with a port or a range of ports for tcp and udp, and in front of it the network or address that it is for, if \
         not for all. A peer with an empty list may open nothing, and one without the field anything. Answers, and ICMP \
         errors about them, pass in both directions. A record may have 256 rules, and 4,096 entries of the packet \
         filter: one for each rule and each of the peer's networks, and more where rules overlap.",
    );
    paragraph(
        roff,
        "The rules are the table `adit-rules-INTERFACE` of nf_tables, family inet: `nft list table inet adit-rules-wg0` shows \
         it, with counters of what it dropped. It is about packets that come from the interface, by their source, which \
         the tunnel has checked. Other tables may drop more. A peer that another program gives an address within the \
         networks of a record is limited like that record's. A change also ends connections that are open and not \
         allowed any more. Rules are there before their peer. They stay when the agent ends, is killed or stopped, as \
         peers do, and the next one replaces them at once. If another program deletes the table, as `nft flush \
         ruleset` does, the agent makes it again within milliseconds.",
    );
    paragraph(
        roff,
        "Where rules cannot be set, a record that has some is refused, its peer is removed, and `adit agent status` says why. \
         Other peers stay. It is tried again every 30 seconds. The kernel needs nf_tables and connection tracking. The \
         agent needs CAP_NET_ADMIN in the network namespace of the interface, which it keeps for one process that does \
         nothing else. In the unit adit-agent@, a drop-in says `Environment=\"ADIT_AGENT_OPTIONS=--rules\"`, \
         `CapabilityBoundingSet=CAP_NET_ADMIN`, `PrivateNetwork=no` and `RestrictAddressFamilies=AF_UNIX AF_NETLINK`. \
         Without `--rules`, such records are refused as well. To end all rules, stop the agent, and run `nft delete table inet \
         adit-rules-wg0` and `rm /run/adit-agent/wg0.rules`.",
    );
}

fn files(roff: &mut Roff) {
    let state = (
        "/run/adit-agent/INTERFACE.peers, INTERFACE.rules, INTERFACE.json",
        "What was brought, the rules of peers, and the status, which the group of `--status-group` may read. A container that is replaced while the interface goes on needs this folder from \
         the one before it.",
    );
    list(roff, "FILES", [state, CONTROL_SOCKET]);
}
