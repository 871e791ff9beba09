# `make test` does all that the tests need and runs all of them. It needs root (network namespaces, TUN devices).

# More tests at once than cores: many of them wait, for timers of the protocol or for an emulated machine.
TEST_THREADS ?= 6

.PHONY: build test unit loom e2e setup peers guest lint ci

build:
	cargo build --release --locked

test: setup peers guest loom
	RUST_TEST_THREADS=$(TEST_THREADS) cargo test --workspace --locked --no-fail-fast

# Without the tests that need root, peers and a guest.
unit:
	cargo test --workspace --exclude adit --locked
	cargo test -p adit --bins --locked

# What shards and the control thread tell each other, in every interleaving. Nothing else is built with this flag.
loom: export CARGO_PROFILE_RELEASE_LTO = off
loom: export CARGO_PROFILE_RELEASE_CODEGEN_UNITS = 16
loom: export CARGO_PROFILE_RELEASE_DEBUG = false
loom:
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p adit-proto --release --test loom --locked

e2e: setup peers guest
	cargo test -p adit --test e2e --locked -- --test-threads $(TEST_THREADS)

setup:
	scripts/setup

# The other implementations, from the package registries.
peers: setup
	scripts/peers

# The kernel's own WireGuard in an emulated machine, and a newer kernel in another one.
guest: setup
	scripts/guest
	scripts/guest --newer

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	scripts/budgets
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --locked --quiet

ci:
	.ci/run
