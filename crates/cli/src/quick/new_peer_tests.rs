use super::*;

fn device() -> DeviceFile {
    let address = |text: &str, prefix_len| InterfaceAddress {
        ip: text.parse().unwrap(),
        prefix_len,
    };
    DeviceFile {
        private: Secret::new(&[1; 32]),
        preshared: Some(Secret::new(&[2; 32])),
        addresses: vec![address("10.77.0.2", 24)],
        dns: Vec::new(),
        own: PublicKey([3; 32]),
        allowed: vec![Cidr::new([0; 4].into(), 0).unwrap()],
        endpoint: "203.0.113.5:51820".parse().unwrap(),
    }
}

#[test]
fn the_text_of_a_code_says_what_the_file_says() {
    let parse = |text: &str| adit_ctl::config::Config::parse(text, "x").unwrap();
    let device = device();
    let (file, dense) = (device.text(" = ", ", ", "\n"), device.text("=", ",", ""));
    assert_eq!(parse(&file), parse(&dense));
    assert!(file.contains("AllowedIPs = 0.0.0.0/0\nEndpoint = 203.0.113.5:51820\n"));
    assert!(dense.len() + 10 < file.len());
}

#[test]
fn a_code_is_as_small_as_its_content_allows() {
    let code = device().qr(false).unwrap();
    let columns: Vec<usize> = code.lines().map(|line| line.chars().count()).collect();
    // 278 bytes: version 11, and two modules around it.
    assert!(columns.iter().all(|count| *count == 61 + 4), "{columns:?}");
    assert_eq!(columns.len(), 65_usize.div_ceil(2));
    // A short one is as narrow as that allows.
    let code = draw("hello", false).unwrap();
    assert_eq!(code.lines().next().unwrap().chars().count(), 25);
    let coloured = draw("hello", true).unwrap();
    assert!(
        coloured
            .lines()
            .all(|line| line.starts_with("\x1b[30;107m") && line.ends_with("\x1b[0m"))
    );
}
