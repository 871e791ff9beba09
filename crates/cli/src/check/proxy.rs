//! A proxy's file: what `adit proxy -n` says of it.

use adit_ctl::config::FileText;
use adit_proxy::config::ProxyConfig;

use super::parts::{CheckFinding, Severity, of_lines};

/// Errors, or else warnings and the lines that are passed over.
pub(super) fn findings(file: &FileText<'_>) -> Vec<CheckFinding> {
    let environment = |name: &str| std::env::var(name).ok();
    match ProxyConfig::of_file(file, &environment) {
        Err(errors) => of_lines(Severity::Error, &errors.0),
        Ok(read) => {
            let mut findings = of_lines(Severity::Warning, &read.warnings);
            findings.extend(of_lines(Severity::Hint, &read.passed_over));
            findings
        }
    }
}
