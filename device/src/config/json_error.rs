//! Rephrases the messages of `serde_json`, which describe the expected values by the names of Rust's types.

/// Message of the standard library for text that is not an address with a port.
const ADDRESS_SYNTAX: &str = "invalid socket address syntax";

/// Replaces Rust's terms in a message with those of JSON.
pub(super) fn in_terms_of_json(message: &str) -> String {
    let message = message.replace(ADDRESS_SYNTAX, "expected a numeric IP address with a port (ADDRESS:PORT)");
    let Some((found, expected)) = message.rsplit_once(", expected ") else { return message };
    let (expected, position) = expected.split_at(expected.rfind(" at line ").unwrap_or(expected.len()));
    let integer = |max: u32| format!("an integer from 0 to {max}");
    let expected = match expected.split(' ').next() {
        Some("struct") => "an object {\"KEY\": ...}".to_owned(),
        Some("u8") => integer(u8::MAX.into()),
        Some("u16") => integer(u16::MAX.into()),
        Some("u32") => integer(u32::MAX),
        Some("u64" | "usize") => "an integer that is not negative".to_owned(),
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
