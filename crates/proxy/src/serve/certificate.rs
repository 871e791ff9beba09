//! What a proxy shows clients that speak TLS with it.

use std::path::Path;
use std::sync::Arc;

use adit_ctl::config;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ConfigBuilder, ServerConfig, WantsVerifier};

use crate::config::CertificateFiles;

/// The one protocol that the proxy speaks in TLS (RFC 7301): clients may ask for HTTP/2, too.
const PROTOCOL: &[u8] = b"http/1.1";

/// Reads a certificate and its key.
///
/// # Errors
///
/// The line that names a file which is not what it should be, and what is wrong with it.
pub fn read_certificate(files: &CertificateFiles) -> Result<Arc<ServerConfig>, (usize, String)> {
    let wrong = |key: &str, line: usize, path: &Path, why: &dyn std::fmt::Display| {
        (line, format!("[http] {key}: {}: {why}", path.display()))
    };
    let CertificateFiles { chain, key } = files;
    let of_chain = |why: &dyn std::fmt::Display| wrong("CertFile", chain.line, &chain.path, why);
    let of_key = |why: &dyn std::fmt::Display| wrong("KeyFile", key.line, &key.path, why);
    let (text, _) = config::read(&chain.path).map_err(|error| of_chain(&error))?;
    let found = CertificateDer::pem_slice_iter(text.as_bytes()).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| of_chain(&explain(&error, "certificate")))?;
    if found.is_empty() {
        return Err(of_chain(&explain(&pem::Error::NoItemsFound, "certificate")));
    }
    let (text, _) = config::read(&key.path).map_err(|error| of_key(&error))?;
    let private = PrivateKeyDer::from_pem_slice(text.as_bytes());
    let private = private.map_err(|error| of_key(&explain(&error, "private key")))?;
    let builder = builder().map_err(|error| of_chain(&error))?;
    let config = builder.with_no_client_auth();
    let config = config.with_single_cert(found, private);
    let mut config = config.map_err(|error| of_key(&refused(&error)))?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(Arc::new(config))
}

/// TLS 1.2 and 1.3, by ring, whatever else the program has.
fn builder() -> Result<ConfigBuilder<ServerConfig, WantsVerifier>, rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()
}

fn explain(error: &pem::Error, what: &str) -> String {
    match error {
        pem::Error::NoItemsFound => format!(
            "there is no {what} in it: name a file in PEM, with a line -----BEGIN {}-----",
            what.to_uppercase()
        ),
        error => format!("it is no PEM: {error}"),
    }
}

fn refused(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InconsistentKeys(_) => {
            "it is the key of another certificate than that of CertFile".to_owned()
        }
        error => format!("the certificate or the key cannot be used: {error}"),
    }
}
