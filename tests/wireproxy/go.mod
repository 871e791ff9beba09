// Builds wireproxy, whose files `adit proxy` reads: scripts/peers wireproxy.
module adit.invalid/wireproxy

go 1.24

tool github.com/pufferffish/wireproxy/cmd/wireproxy

require (
	github.com/MakeNowJust/heredoc/v2 v2.0.1 // indirect
	github.com/akamensky/argparse v1.4.0 // indirect
	github.com/go-ini/ini v1.67.0 // indirect
	github.com/google/btree v1.1.2 // indirect
	github.com/landlock-lsm/go-landlock v0.0.0-20240216195629-efb66220540a // indirect
	github.com/pufferffish/wireproxy v1.0.9 // indirect
	github.com/sourcegraph/conc v0.3.0 // indirect
	github.com/things-go/go-socks5 v0.0.5 // indirect
	golang.org/x/crypto v0.21.0 // indirect
	golang.org/x/net v0.23.0 // indirect
	golang.org/x/sys v0.18.0 // indirect
	golang.org/x/time v0.5.0 // indirect
	golang.zx2c4.com/wintun v0.0.0-20230126152724-0fa3db229ce2 // indirect
	golang.zx2c4.com/wireguard v0.0.0-20231211153847-12269c276173 // indirect
	gvisor.dev/gvisor v0.0.0-20230927004350-cbd86285d259 // indirect
	kernel.org/pub/linux/libs/security/libcap/psx v1.2.69 // indirect
	suah.dev/protect v1.2.3 // indirect
)

// Restricts programs on OpenBSD alone, and is not where modules are fetched from.
replace suah.dev/protect => ./protect
