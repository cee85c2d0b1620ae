//! Rephrases the messages of `serde_json`, which describe the expected values by the names of Rust's types.

/// Message of the standard library for text that is not an address with a port.
const ADDRESS_SYNTAX: &str = "invalid socket address syntax";

/// Replaces Rust's terms in a message with those of JSON.
pub(super) fn in_terms_of_json(message: &str) -> String {
    let message = message.replace(ADDRESS_SYNTAX, "expected a numeric IP address with a port (ADDRESS:PORT)");
    let Some((found, expected)) = message.rsplit_once(", expected ") else { return message };
    let (expected, position) = expected.split_at(expected.rfind(" at line ").unwrap_or(expected.len()));
    let (min, kind) = match expected.strip_prefix("a nonzero ") {
        Some(kind) => (1, kind),
        None => (0, expected),
    };
    let integer = |max: u32| format!("an integer from {min} to {max}");
    let expected = match kind.split(' ').next() {
        Some("struct") => "an object {\"KEY\": ...}".to_owned(),
        Some("u8") => integer(u8::MAX.into()),
        Some("u16") => integer(u16::MAX.into()),
        Some("u32") => integer(u32::MAX),
        Some("u64" | "usize") => format!("an integer that is {min} or more"),
        Some("f64") => "a number".to_owned(),
        Some("path") => "a path".to_owned(),
        _ => expected.to_owned(),
    };
    // An enum variant without fields is a string in JSON.
    let found = found.replace("invalid type: unit variant", "invalid type: string");
    format!("{found}, expected {expected}{position}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::{check, device};
    use super::super::{DeviceConfig, SocketsEntry};
    use super::in_terms_of_json;

    #[test]
    fn messages_describe_expected_json() {
        const OBJECT: &str = r#"expected an object {"KEY": ...}"#;
        let fabric = |text: &str| format!(r#"{{"id": 1, "frontend": {{"mthca": {{}}}}, "fabric": {text}}}"#);
        let rule = |action: &str| {
            device(&format!(r#", "impairments": [{{"direction": "tx", "action": {action}}}]"#))
        };
        for (entry, expected) in [
            (
                device(r#", "trace": "t""#),
                format!(r#"devices[0].trace: invalid type: string "t", {OBJECT} at line "#),
            ),
            (
                fabric(r#"{"tap": "tap0"}"#),
                format!(r#"devices[0].fabric.tap: invalid type: string "tap0", {OBJECT} at line "#),
            ),
            (
                rule(r#""delay""#),
                format!("devices[0].impairments[0].action.delay: invalid type: string, {OBJECT} at line "),
            ),
            (
                rule(r#"{"delay": 5}"#),
                format!("devices[0].impairments[0].action.delay: invalid type: integer `5`, {OBJECT} at line "),
            ),
            (
                fabric(r#"{"udp": {"bind": "0.0.0.0", "peers": []}}"#),
                "devices[0].fabric.udp.bind: expected a numeric IP address with a port (ADDRESS:PORT) at line "
                    .to_owned(),
            ),
            (
                device("").replace("258", r#""1""#),
                r#"devices[0].id: invalid type: string "1", expected an integer from 0 to 65535 at line "#
                    .to_owned(),
            ),
            (
                device(r#", "capture": true"#),
                "devices[0].capture: invalid type: boolean `true`, expected a path at line ".to_owned(),
            ),
            (device(r#", "strict": 1"#), "devices[0].strict: invalid type: integer `1`, expected a boolean".to_owned()),
        ] {
            let error = check(&entry).unwrap_err();
            assert!(error.starts_with(&expected), "{error} should start with {expected}");
        }
    }

    #[test]
    fn messages_describe_expected_numbers() {
        for (kind, expected) in [
            ("u8", "an integer from 0 to 255"),
            ("u64", "an integer that is 0 or more"),
            ("a nonzero u32", "an integer from 1 to 4294967295"),
            ("a nonzero u64", "an integer that is 1 or more"),
            ("f64", "a number"),
        ] {
            for position in ["", " at line 1 column 2"] {
                let message = format!("invalid type: string \"x\", expected {kind}{position}");
                let described = format!("invalid type: string \"x\", expected {expected}{position}");
                assert_eq!(in_terms_of_json(&message), described);
            }
        }
    }

    #[test]
    fn messages_of_added_device_describe_expected_json() {
        let entry = json!({ "id": 1, "frontend": { "mthca": {} }, "fabric": { "local": {} }, "trace": "t" });
        let sockets = SocketsEntry { mode: None, group: None };
        let error = DeviceConfig::beside(entry.as_object().unwrap().clone(), &sockets, &[]).unwrap_err();
        assert_eq!(
            error.to_string(),
            r#"device.trace: invalid type: string "t", expected an object {"KEY": ...}"#
        );
    }
}
