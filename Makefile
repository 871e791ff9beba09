# `make test` does all that the tests need and runs all of them. It needs root (network namespaces, TUN devices).

# More tests at once than cores: many of them wait, for timers of the protocol or for an emulated machine.
TEST_THREADS ?= 6

.PHONY: build install uninstall deb static test about quick unit loom e2e setup peers guest root lint portable ffi package packaging sbom ci

# Where `make install` puts things. A package has PREFIX=/usr and a DESTDIR.
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
MANDIR ?= $(PREFIX)/share/man
UNITDIR ?= $(PREFIX)/lib/systemd/system
SYSUSERSDIR ?= $(PREFIX)/lib/sysusers.d
DOCDIR ?= $(PREFIX)/share/doc/adit
BASHDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
FISHDIR ?= $(PREFIX)/share/fish/vendor_completions.d
# What a user copies, and how each is looked after.
EXAMPLES = ansible container kubernetes prometheus systemd
PAGES = $(addprefix docs/,backup.md move.md upgrade.md uninstall.md wireproxy.md)
# The program to install, the one that writes its pages and completions (another machine's cannot run here), and the
# tool that removes debugging information.
ADIT ?= target/release/adit
RUN_ADIT ?= $(ADIT)
STRIP ?= strip

build:
	cargo build --release --locked

# As root, who need not have a Rust toolchain, after `make build`.
install:
	@test -x $(ADIT) || { echo "$(ADIT) is missing: run 'make build' first" >&2; exit 1; }
	install -d $(addprefix $(DESTDIR),$(BINDIR) $(MANDIR)/man8 $(UNITDIR) $(SYSUSERSDIR) $(DOCDIR) $(BASHDIR) $(ZSHDIR) $(FISHDIR))
	install -m 755 $(ADIT) $(DESTDIR)$(BINDIR)/adit
	$(STRIP) $(DESTDIR)$(BINDIR)/adit
	$(RUN_ADIT) man --dir $(DESTDIR)$(MANDIR)/man8
	$(RUN_ADIT) completions bash > $(DESTDIR)$(BASHDIR)/adit
	$(RUN_ADIT) completions zsh > $(DESTDIR)$(ZSHDIR)/_adit
	$(RUN_ADIT) completions fish > $(DESTDIR)$(FISHDIR)/adit.fish
	install -m 644 packaging/adit@.service packaging/adit-blocked@.service packaging/adit-agent@.service packaging/adit-metrics.service $(DESTDIR)$(UNITDIR)/
	install -m 644 packaging/adit.sysusers $(DESTDIR)$(SYSUSERSDIR)/adit.conf
	install -m 644 LICENSE-MIT LICENSE-APACHE README.md CHANGELOG.md SECURITY.md $(DESTDIR)$(DOCDIR)/
	install -m 644 $(PAGES) $(DESTDIR)$(DOCDIR)/
	for file in $$(cd packaging && find $(EXAMPLES) -type f); do install -D -m 644 packaging/$$file $(DESTDIR)$(DOCDIR)/examples/$$file || exit; done
	install -m 644 packaging/grafana/adit.json $(DESTDIR)$(DOCDIR)/examples/grafana.json
	@test -n "$(DESTDIR)" || echo "installed $(BINDIR)/adit; with /etc/wireguard/wg0.conf: systemctl daemon-reload, systemctl enable --now adit@wg0; for adit-metrics: systemd-sysusers"

# target/debian/adit_VERSION_ARCH.deb
deb: build
	scripts/deb

# target/static/ARCH/adit
static:
	scripts/static

# Leaves /etc/wireguard and running tunnels.
uninstall:
	rm -f $(addprefix $(DESTDIR),$(BINDIR)/adit $(BASHDIR)/adit $(ZSHDIR)/_adit $(FISHDIR)/adit.fish)
	rm -f $(DESTDIR)$(MANDIR)/man8/adit.8 $(DESTDIR)$(MANDIR)/man8/adit-*.8 $(addprefix $(DESTDIR)$(UNITDIR)/,adit@.service adit-blocked@.service adit-agent@.service adit-metrics.service) $(DESTDIR)$(SYSUSERSDIR)/adit.conf
	rm -rf $(DESTDIR)$(DOCDIR)

# First what is about to happen: the recipe of the first prerequisite runs first.
test: about setup peers guest root loom
	RUST_TEST_THREADS=$(TEST_THREADS) scripts/test

about:
	@echo "make test: installs Debian packages that tests need, builds other implementations, guests and Adit, then runs all"
	@echo "tests: of each crate, of threads in every order (loom), of the lab, and between hosts in namespaces of their own."
	@echo "From a clean clone that takes some 40 minutes on two cores; make quick, once built, three."

# Unit tests, and a test or two between hosts for each thing that users do.
QUICK = \
	carries::a_tunnel_over_ipv4_carries_ipv4_and_ipv6_unchanged \
	carries::fifty_flows_at_once_arrive_whole \
	daemon::it_ends_cleanly_on_sigterm_and_sigint \
	everyday::a_new_peer_connects_with_the_file_that_it_is_given \
	everyday::names_are_of_the_peers_that_they_were_given_to \
	init::readmes_first_lines_lead_from_nothing_to_a_phone_on_the_internet \
	many::one_process_serves_several_interfaces \
	quick::a_full_tunnel_whose_process_was_killed_leaks_nothing \
	quick::adit_up_and_down_do_what_wg_quick_does \
	sandbox::every_thread_has_given_up_what_it_does_not_need \
	sessions::a_changed_private_key_takes_over_under_traffic \
	sessions::packets_from_outside_a_peers_allowed_ips_are_dropped \
	uapi::a_failing_set_changes_nothing_at_all \
	upgrade::traffic_goes_on_while_processes_are_replaced

quick: setup
	cargo test --workspace --lib --bins --locked
	cargo test -p adit-cli --test e2e --locked -- --exact --test-threads $(TEST_THREADS) $(QUICK)

# Without the tests that need root, peers and a guest.
unit:
	cargo test --workspace --exclude adit-cli --features adit/linux,adit/tokio --locked
	cargo test -p adit-cli --bins --locked
	cargo test --manifest-path bench/Cargo.toml --bins --locked

# What shards and the control thread tell each other, and the order of queues, in every interleaving. Nothing else is built with this flag.
loom: export CARGO_PROFILE_RELEASE_LTO = off
loom: export CARGO_PROFILE_RELEASE_CODEGEN_UNITS = 16
loom: export CARGO_PROFILE_RELEASE_DEBUG = false
loom:
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p adit-proto -p adit-engine --release --test loom --locked

e2e: setup peers guest root
	cargo test -p adit-cli --test e2e --locked -- --test-threads $(TEST_THREADS)

setup:
	scripts/setup

# The other implementations, from the package registries.
peers: setup
	scripts/peers

# A small Debian with systemd, to install the package in.
root: setup
	scripts/root

# The kernel's own WireGuard in an emulated machine, and a newer kernel in another one.
guest: setup
	scripts/guest
	scripts/guest --newer

# The crates that are published: the library, what it is built of, and boringtun's API. The library has the documentation
# folder `adit`, so that of the program stands in target/program.
PUBLIC = $(addprefix -p ,adit adit-proto adit-aead adit-offload adit-io adit-engine adit-netlink adit-sandbox boringtun-compat)

lint:
	cargo fmt --all --check
	cargo fmt --manifest-path bench/Cargo.toml --check
	cargo fmt --manifest-path bench/embedders/Cargo.toml --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo clippy --manifest-path bench/Cargo.toml --all-targets --locked -- -D warnings
	scripts/budgets
	cargo run --quiet --locked -p adit-supply -- check
	cargo run --quiet --locked -p adit-supply -- api --check
	cargo package $(PUBLIC) --no-verify --allow-dirty --locked --offline --quiet
	for features in --no-default-features --features=engine --features=linux --features=net --features=tokio; do RUSTDOCFLAGS="-D warnings" cargo doc -p adit $$features --no-deps --locked --quiet || exit; done
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --locked --quiet
	RUSTDOCFLAGS="-D warnings" CARGO_BUILD_BUILD_DIR=target cargo doc -p adit-cli --bin adit --target-dir target/program --no-deps --document-private-items --locked --quiet
	RUSTDOCFLAGS="-D warnings" cargo doc --manifest-path bench/Cargo.toml --no-deps --document-private-items --locked --quiet

# Whether the library without I/O compiles for systems that are not here: nothing is linked or run.
portable:
	scripts/portable

# The crates as they would be published, each built from its package and those of the others, not from the repository.
# `make lint` only makes the packages. cargo keeps by name and version what it unpacked and built from them: both go,
# or the next run would build from the packages of the last one.
package:
	rm -rf target/published $${CARGO_HOME:-$$HOME/.cargo}/registry/src/-*/adit-* $${CARGO_HOME:-$$HOME/.cargo}/registry/src/-*/boringtun-compat-*
	cargo package $(PUBLIC) --target-dir target/published --allow-dirty --locked

# The library for C, as it is installed: header, static and shared library, pkg-config file.
ffi:
	scripts/ffi target/ffi

# The manual pages, the package and what packaging/ has, each read by its own tool where that is installed.
packaging: deb
	target/release/adit man --dir target/man
	scripts/check-packaging

# What the program is made of, for a release.
sbom:
	@mkdir -p target
	cargo run --quiet --locked -p adit-supply -- sbom > target/adit.cdx.json
	@echo target/adit.cdx.json

ci:
	.ci/run
