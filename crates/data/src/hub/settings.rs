//! The settings of the Hugging Face Hub in the environment: the same variables, with the same
//! meaning and defaults, as huggingface_hub. Read once per call and passed on as a value, so that
//! nothing else looks at the environment.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use kiln_core::error::{Error, Result};
use kiln_core::files::{MAX_CONFIG, read_given};

/// How the Hub is reached and where its files are kept.
#[derive(Clone)]
pub struct HubSettings {
    /// Folder of the cache, the one that holds `models--org--name`. Default:
    /// `~/.cache/huggingface/hub`.
    pub cache: PathBuf,
    /// Address of the Hub without a trailing slash. Default: `https://huggingface.co`. A user name
    /// and password in it (`https://NAME:PASSWORD@host`) are sent instead of the token, to this
    /// host only, and never shown.
    pub endpoint: String,
    /// Access token for private and gated repositories. Default: none.
    pub token: Option<String>,
    /// Use the cache only, never the network. Default: false.
    pub offline: bool,
    /// Longest wait for the name, the connection, an answer, and for each piece of a file; also the
    /// time over which a body has to bring 1 KiB a second. Default: 10 s, as in huggingface_hub.
    /// The HTTP client itself would wait for ever.
    pub timeout: Duration,
    /// Whether to draw a progress bar on stderr. Default: if stderr is a terminal.
    pub progress: bool,
}

impl HubSettings {
    /// Reads `HF_HUB_CACHE` (else `HF_HOME`, else `XDG_CACHE_HOME`), `HF_ENDPOINT`, `HF_TOKEN`
    /// (else the file that `hf auth login` wrote: `HF_TOKEN_PATH`, else `HF_HOME/token`),
    /// `HF_HUB_DOWNLOAD_TIMEOUT` (seconds) and `HF_HUB_OFFLINE` (1, true, yes or on). Proxies are
    /// taken from `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` when a request is made.
    ///
    /// # Errors
    /// `Config` if the endpoint is no http(s) address, the token or the time cannot be one, or no
    /// cache folder can be named.
    pub fn from_env() -> Result<Self> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// [`HubSettings::from_env`] with the look-up of variables as a parameter.
    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let variable =
            |name: &str| variable(name).map(|value| value.trim().to_string()).filter(|value| !value.is_empty());
        let folder = |name: &str| variable(name).map(|value| expand_home(&value));
        let home = folder("HF_HOME")
            .or_else(|| folder("XDG_CACHE_HOME").map(|cache| cache.join("huggingface")))
            .or_else(|| std::env::home_dir().map(|home| home.join(".cache/huggingface")));
        let Some(cache) = folder("HF_HUB_CACHE").or_else(|| home.as_ref().map(|home| home.join("hub"))) else {
            return Err(Error::config("there is no home folder to keep the Hugging Face cache in").help("set HF_HOME"));
        };

        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_string());
        let endpoint = endpoint.trim_end_matches('/').to_string();
        let has_host =
            ureq::http::Uri::try_from(&endpoint).is_ok_and(|uri| uri.host().is_some_and(|host| !host.is_empty()));
        let is_web = endpoint.starts_with("https://") || endpoint.starts_with("http://");
        // A password with a `/` would be taken for a port and a path, and shown.
        if !has_host || !is_web || shown_endpoint(&endpoint).contains('@') {
            let shown = endpoint.rsplit('@').next().unwrap_or_default();
            return Err(Error::config(format!("HF_ENDPOINT is `{shown}`, expected an http or https address")).help(
                "for example HF_ENDPOINT=https://huggingface.co; in a password, `/` is written %2F and `@` %40",
            ));
        }

        let token_file = folder("HF_TOKEN_PATH").or_else(|| home.map(|home| home.join("token")));
        let token = variable("HF_TOKEN")
            .or_else(|| String::from_utf8(read_given(&token_file?, MAX_CONFIG).ok()?).ok())
            .map(|token| token.trim().to_string())
            .filter(|token| !token.is_empty());
        if token.as_ref().is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(Error::config(
                "the Hugging Face token (HF_TOKEN or its file) has characters that no token has",
            )
            .help("a token looks like hf_..., see https://huggingface.co/settings/tokens"));
        }

        let offline = variable("HF_HUB_OFFLINE")
            .is_some_and(|value| matches!(value.to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on"));
        // 0 is the default, as in huggingface_hub.
        let timeout = variable("HF_HUB_DOWNLOAD_TIMEOUT").filter(|seconds| seconds != "0");
        let timeout = timeout.map_or(Ok(Duration::from_secs(10)), |given| {
            let seconds = given.parse::<f64>().ok().filter(|seconds| (0.001..=86_400.0).contains(seconds));
            seconds.map(Duration::from_secs_f64).ok_or_else(|| {
                Error::config(format!("HF_HUB_DOWNLOAD_TIMEOUT is `{given}`, expected seconds, up to 86400"))
                    .help("for example HF_HUB_DOWNLOAD_TIMEOUT=30")
            })
        })?;
        let progress = std::io::stderr().is_terminal();
        Ok(Self { cache, endpoint, token, offline, timeout, progress })
    }

    /// The endpoint without user name and password, for URLs and messages.
    pub fn shown_endpoint(&self) -> String {
        shown_endpoint(&self.endpoint)
    }

    /// User name and password of the endpoint, if it has any, as they stand there.
    pub(super) fn login(&self) -> Option<&str> {
        split_login(&self.endpoint).1
    }
}

fn shown_endpoint(endpoint: &str) -> String {
    let (scheme, _, rest) = split_login(endpoint);
    format!("{scheme}{rest}")
}

/// `https://`, what stands before the last `@` of the authority, and the rest.
fn split_login(endpoint: &str) -> (&str, Option<&str>, &str) {
    let (scheme, rest) = endpoint.split_at(endpoint.find("://").map_or(0, |at| at + 3));
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    match authority.rfind('@') {
        Some(at) => (scheme, Some(&rest[..at]), &rest[at + 1..]),
        None => (scheme, None, rest),
    }
}

/// `~` and `~/...` with the home folder put in; other paths as they are.
pub(super) fn expand_home(path: &str) -> PathBuf {
    match (path.strip_prefix('~'), std::env::home_dir()) {
        (Some(""), Some(home)) => home,
        (Some(rest), Some(home)) if rest.starts_with('/') => home.join(rest.trim_start_matches('/')),
        _ => PathBuf::from(path),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<HubSettings> {
        let find = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string());
        HubSettings::from_variables(find)
    }

    #[test]
    fn defaults_are_hugging_faces() {
        let nowhere = tempfile::tempdir().unwrap();
        let found = settings(&[("XDG_CACHE_HOME", nowhere.path().to_str().unwrap())]).unwrap();
        assert_eq!(found.cache, nowhere.path().join("huggingface/hub"));
        assert_eq!(found.endpoint, "https://huggingface.co");
        assert!(found.token.is_none() && !found.offline);
        assert_eq!(settings(&[]).unwrap().cache, std::env::home_dir().unwrap().join(".cache/huggingface/hub"));
    }

    #[test]
    fn variables_are_honoured() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("token"), "hf_from_file\n").unwrap();
        let hf_home = ("HF_HOME", home.path().to_str().unwrap());
        let found = settings(&[hf_home, ("HF_ENDPOINT", "http://localhost:1/"), ("HF_HUB_OFFLINE", "YES")]).unwrap();
        assert_eq!(found.cache, home.path().join("hub"));
        assert_eq!(found.endpoint, "http://localhost:1");
        assert_eq!(found.token.as_deref(), Some("hf_from_file"));
        assert!(found.offline);

        let found =
            settings(&[hf_home, ("HF_HUB_CACHE", "/a/b"), ("HF_TOKEN", " hf_x "), ("HF_HUB_OFFLINE", "0")]).unwrap();
        assert_eq!(found.cache, PathBuf::from("/a/b"));
        assert_eq!(found.token.as_deref(), Some("hf_x"));
        assert!(!found.offline);
        assert_eq!(settings(&[("HF_HOME", "~/x")]).unwrap().cache, std::env::home_dir().unwrap().join("x/hub"));
    }

    #[test]
    fn bad_variables_are_named() {
        for endpoint in [
            "huggingface.co",
            "ftp://x",
            "https://",
            "ftp://u:s3cret@x",
            "u:s3cret@x",
            "https://u:s3c@ret@ ",
            "https://u:8/s3c@x",
        ] {
            let error = settings(&[("HF_ENDPOINT", endpoint)]).err().unwrap().to_string();
            assert!(error.contains("HF_ENDPOINT") && !error.contains("s3c"), "{error}");
        }
        for seconds in ["soon", "-1", "nan", "inf", "1e9"] {
            let error = settings(&[("HF_HUB_DOWNLOAD_TIMEOUT", seconds)]).err().unwrap().to_string();
            assert!(error.contains("HF_HUB_DOWNLOAD_TIMEOUT") && error.contains(seconds), "{error}");
        }
        let timeout = |seconds: &str| settings(&[("HF_HUB_DOWNLOAD_TIMEOUT", seconds)]).unwrap().timeout.as_millis();
        assert_eq!([timeout("0"), timeout("2.5"), timeout(" 60 ")], [10_000, 2_500, 60_000]);
        let error = settings(&[("HF_TOKEN", "hf_a\nb")]).err().unwrap().to_string();
        assert!(error.contains("HF_TOKEN") && !error.contains("hf_a"), "{error}");
    }
}
