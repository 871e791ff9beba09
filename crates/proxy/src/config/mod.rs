//! What a proxy is to do, as files say it.
//!
//! The files are wireproxy's: its sections `[Socks5]`, `[http]` and others beside wg-quick's
//! `[Interface]` and `[Peer]`, or `WGConfig = FILE` instead of these. A file of wg-quick alone is a tunnel
//! without services. `docs/wireproxy.md` has what differs.

mod ini;
mod model;
mod scan;
mod sections;
mod services;
mod tunnel;
mod values;

#[cfg(test)]
mod tests;

use std::io;
use std::path::Path;

use adit_ctl::config::{self, Errors, FileText, Remark};
use zeroize::Zeroizing;

use ini::IniLine;
pub use model::{
    Bind, CertificateFiles, Credentials, EndpointHost, NamedFile, PeerPart, ProxyConfig,
    ProxyEndpoint, ProxyService, Resolve, ServiceKind, TunnelPart,
};
pub use scan::Environment;
use scan::Scan;
use sections::ProxySection;

/// A file, understood.
#[derive(Debug)]
pub struct ProxyFile {
    /// What a proxy is to do.
    pub config: ProxyConfig,
    /// What is allowed, and probably not meant.
    pub warnings: Vec<Remark>,
    /// Lines that a proxy has no use for, such as hooks.
    pub passed_over: Vec<Remark>,
}

impl ProxyConfig {
    /// Reads a file of wireproxy's or wg-quick's. A value `$NAME` is what `environment` has under this name.
    ///
    /// # Errors
    ///
    /// Every mistake of the file, with its line, section and key; or it cannot be read.
    pub fn read(path: &Path, environment: Environment<'_>) -> Result<ProxyFile, Errors> {
        Self::of_file(&FileText::read(path)?, environment)
    }

    /// The same of a file that was read already.
    ///
    /// # Errors
    ///
    /// Every mistake of the file.
    pub fn of_file(file: &FileText<'_>, environment: Environment<'_>) -> Result<ProxyFile, Errors> {
        let name = file.path().display().to_string();
        let load = |path: &Path| config::read(path).map(|(text, _)| text);
        let mut read = Self::parse(file.text(), &name, environment, &load)?;
        let exposure = file.exposure().map(|text| about(&name, text));
        read.warnings.splice(0..0, exposure);
        Ok(read)
    }

    /// Reads the text of `file`, which is only named in remarks. `load` reads the file that `WGConfig` names.
    ///
    /// # Errors
    ///
    /// Every mistake of the text.
    pub fn parse(
        text: &str,
        file: &str,
        environment: Environment<'_>,
        load: &dyn Fn(&Path) -> io::Result<Zeroizing<String>>,
    ) -> Result<ProxyFile, Errors> {
        if let Some(other) = config::other_file(text) {
            return Err(Errors(vec![about(file, other.to_owned())]));
        }
        let mut scan = Scan::of(text, file, environment);
        let (services, resolve) = services::services(&mut scan);
        let (tunnel, mut beside) = match scan.wg_config.take() {
            None => (tunnel::tunnel(&mut scan, file), None),
            Some(wg_config) => {
                pass_over_tunnel(&mut scan);
                let path = wg_config.value.as_str();
                match load(Path::new(path)) {
                    Ok(text) => {
                        let (tunnel, beside) = tunnel_beside(&text, path, environment);
                        (tunnel, Some(beside))
                    }
                    Err(error) => {
                        let text = format!("WGConfig: {path} cannot be read: {error}");
                        scan.error(wg_config.line, text);
                        (None, None)
                    }
                }
            }
        };
        if let Some((errors, warnings, passed_over)) = &mut beside {
            scan.errors.append(errors);
            scan.warnings.append(warnings);
            scan.passed_over.append(passed_over);
        }
        for remarks in [&mut scan.errors, &mut scan.warnings, &mut scan.passed_over] {
            remarks.sort_by_key(|it| (it.file != file, it.line));
        }
        match tunnel.filter(|_| scan.errors.is_empty()) {
            None => Err(Errors(scan.errors)),
            Some(tunnel) => Ok(ProxyFile {
                config: Self {
                    tunnel,
                    services,
                    resolve,
                },
                warnings: scan.warnings,
                passed_over: scan.passed_over,
            }),
        }
    }
}

/// Whether a text is a proxy's: it has one of a proxy's own sections, misspelt or not, or `WGConfig`.
pub fn is_proxy_file(text: &str) -> bool {
    let mut has_section = false;
    text.lines().any(|line| match IniLine::read(line) {
        IniLine::Header(name, _) => {
            has_section = true;
            ProxySection::meant(name).is_some_and(|section| !section.is_of_tunnel())
        }
        IniLine::Pair(key, _) => {
            let own = if has_section {
                "CheckAlive"
            } else {
                "WGConfig"
            };
            key.eq_ignore_ascii_case(own)
        }
        IniLine::Blank(_) | IniLine::Other => false,
    })
}

type Remarks = (Vec<Remark>, Vec<Remark>, Vec<Remark>);

/// The tunnel of the file that `WGConfig` names: errors, warnings, and what is passed over.
fn tunnel_beside(
    text: &str,
    file: &str,
    environment: Environment<'_>,
) -> (Option<TunnelPart>, Remarks) {
    if let Some(other) = config::other_file(text) {
        let error = about(file, other.to_owned());
        return (None, (vec![error], Vec::new(), Vec::new()));
    }
    let mut scan = Scan::of(text, file, environment);
    if let Some(again) = scan.wg_config.take() {
        scan.error(
            again.line,
            "WGConfig stands in the file that another WGConfig names: that one is to have [Interface] and [Peer]",
        );
    }
    let parts = scan.parts.iter();
    let others = parts.filter(|part| !part.section.is_of_tunnel());
    let others: Vec<_> = others
        .map(|part| (part.line, part.section.name()))
        .collect();
    for (line, name) in others {
        let text =
            format!("[{name}] is passed over: only the file that names this one has services");
        scan.pass_over(line, text);
    }
    let tunnel = tunnel::tunnel(&mut scan, file);
    (tunnel, (scan.errors, scan.warnings, scan.passed_over))
}

/// The tunnel is configured elsewhere.
fn pass_over_tunnel(scan: &mut Scan<'_>) {
    let parts = scan.parts.iter();
    let own = parts.filter(|part| part.section.is_of_tunnel());
    let own: Vec<_> = own.map(|part| (part.line, part.section.name())).collect();
    for (line, name) in own {
        let text = format!("[{name}] is passed over: WGConfig names the file that has it");
        scan.pass_over(line, text);
    }
}

fn about(file: &str, text: String) -> Remark {
    Remark {
        file: file.to_owned(),
        line: 0,
        text,
    }
}
