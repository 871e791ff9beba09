//! What a proxy is to do, by its file and the command line.

use std::path::{Path, PathBuf};

use adit_ctl::config::{self, Remark};
use adit_proxy::config::{ProxyConfig, ProxyService, ServiceKind};

use crate::cli::ProxyArgs;
use crate::failure::{Failure, Result, bail};

/// Where wireproxy looks for its file.
const FILE: &str = "/etc/wireproxy/wireproxy.conf";
const FILE_OF_USER: &str = ".config/wireproxy.conf";

/// What a proxy is to do.
pub(super) struct LoadedProxy {
    /// What people call it: the name of the file without its ending.
    pub(super) name: String,
    /// Its path, as it was given.
    pub(super) file: String,
    pub(super) config: ProxyConfig,
    /// What is allowed, and probably not meant.
    pub(super) warnings: Vec<Remark>,
    /// Lines that do nothing here.
    pub(super) passed_over: Vec<Remark>,
}

pub(super) fn load(args: &ProxyArgs) -> Result<LoadedProxy> {
    let path = file(args)?;
    if path.try_exists().is_ok_and(|exists| !exists) {
        bail!(
            Mistake,
            "there is no file {}: name one of wireproxy's or of wg-quick's; one in {} is called by its name alone, as wg0",
            path.display(),
            config::DIR
        );
    }
    let environment = |name: &str| std::env::var(name).ok();
    let read = ProxyConfig::read(&path, &environment);
    let read = read.map_err(|errors| Failure::Mistake(errors.to_string()))?;
    let mut config = read.config;
    let socks = args.socks.iter().map(|bind| ServiceKind::Socks5 {
        bind: bind.clone(),
        credentials: None,
    });
    let http = args.http.iter().map(|bind| ServiceKind::Http {
        bind: bind.clone(),
        credentials: None,
        certificate: None,
    });
    let forwards = args.forward.iter().map(|forward| forward.service());
    let more = socks.chain(http).chain(forwards);
    let service = |kind| ProxyService { line: 0, kind };
    config.services.extend(more.map(service));
    if config.services.is_empty() && args.info.is_none() {
        bail!(
            Mistake,
            "{} offers nothing to clients: add `--socks 127.0.0.1:1080`, or a section [Socks5] with BindAddress to the file",
            path.display()
        );
    }
    let stem = path.file_stem().unwrap_or_default();
    Ok(LoadedProxy {
        name: stem.to_string_lossy().into_owned(),
        file: path.display().to_string(),
        config,
        warnings: read.warnings,
        passed_over: read.passed_over,
    })
}

/// The file that is named, or one of wireproxy's own places.
fn file(args: &ProxyArgs) -> Result<PathBuf> {
    match (&args.config, &args.conf) {
        (Some(file), _) => Ok(file.clone()),
        (None, Some(conf)) => config::locate_any(conf).map_err(Failure::Mistake),
        (None, None) => {
            let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
            let of_user = home.map(|home| Path::new(&home).join(FILE_OF_USER));
            let places: Vec<PathBuf> = [PathBuf::from(FILE)].into_iter().chain(of_user).collect();
            let found = places.iter().find(|path| path.is_file());
            found.cloned().ok_or_else(|| {
                let named: Vec<String> = places.iter().map(|path| path.display().to_string()).collect();
                Failure::Mistake(format!(
                    "there is no {}: name a file, as `adit proxy -c FILE`, or `adit proxy wg0 --socks 127.0.0.1:1080` for \
                     one in /etc/wireguard",
                    named.join(" and no ")
                ))
            })
        }
    }
}
