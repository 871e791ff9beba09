//! The number of a gateway that shares its key and address with others.

use adit_proto::MAX_GATEWAYS;
use clap::Args;

/// Which of the gateways a process is.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct GatewayArgs {
    /// The number of this gateway, if several have one key and serve one address at the same time:
    /// each has a number of its own, 0 to 31. See adit-steer(8)
    #[arg(long, value_name = "N", env = "ADIT_GATEWAY_ID", hide_env_values = true, value_parser = gateway_id)]
    pub(crate) gateway_id: Option<u8>,
}

pub(super) fn gateway_id(text: &str) -> Result<u8, String> {
    let id = text.trim().parse().ok();
    let most = MAX_GATEWAYS - 1;
    id.filter(|id| *id <= most)
        .ok_or_else(|| format!("expected a number from 0 to {most}"))
}
