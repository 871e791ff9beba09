//! A proxy's file: what `adit proxy -n` says of it.

use adit_ctl::config::{FileText, Remark};
use adit_proxy::config::{ProxyConfig, ServiceKind};
use adit_proxy::serve::read_certificate;

use super::parts::{CheckFinding, Severity, of_lines};

/// Errors, or else warnings and the lines that are passed over.
pub(super) fn findings(file: &FileText<'_>) -> Vec<CheckFinding> {
    let environment = |name: &str| std::env::var(name).ok();
    match ProxyConfig::of_file(file, &environment) {
        Err(errors) => of_lines(Severity::Error, &errors.0),
        Ok(read) => {
            let mut findings = certificates(file, &read.config);
            findings.extend(of_lines(Severity::Warning, &read.warnings));
            findings.extend(of_lines(Severity::Hint, &read.passed_over));
            findings
        }
    }
}

/// The certificates that cannot be shown to clients.
fn certificates(file: &FileText<'_>, config: &ProxyConfig) -> Vec<CheckFinding> {
    let wrong = config.services.iter().filter_map(|service| {
        let ServiceKind::Http { certificate, .. } = &service.kind else {
            return None;
        };
        let (line, text) = read_certificate(certificate.as_ref()?).err()?;
        let file = file.path().display().to_string();
        Some(Remark { file, line, text })
    });
    of_lines(Severity::Error, &Vec::from_iter(wrong))
}
