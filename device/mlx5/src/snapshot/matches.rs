//! Formats the header fields that a flow table entry matches on.

use std::net::{Ipv4Addr, Ipv6Addr};

use protocol::describe::{Describe, Value, Visitor};
use protocol::hca::mlx5::match_parameters::OuterHeaders;

/// Names and formatted values of all fields, in order.
#[derive(Default)]
struct Fields(Vec<(String, String)>);

impl Fields {
    fn of(headers: &OuterHeaders) -> Self {
        let mut fields = Self::default();
        headers.describe(&mut fields);
        fields
    }
}

impl Visitor for Fields {
    fn value(&mut self, name: &str, value: Value<'_>) {
        let text = match value {
            Value::Number(number) => number.to_string(),
            Value::Hex(number) => format!("{number:#x}"),
            Value::Flag(flag) => u8::from(flag).to_string(),
            Value::Name(word) => word.to_owned(),
            Value::Set(names, _) => names.join("|"),
            Value::Bytes(bytes) => address(bytes),
            Value::Text(text) => text.to_string(),
        };
        self.0.push((name.to_owned(), text));
    }

    fn object(&mut self, _: &str, object: &dyn Describe) {
        object.describe(self);
    }

    fn objects(&mut self, _: &str, objects: &mut dyn Iterator<Item = &dyn Describe>) {
        objects.for_each(|object| object.describe(self));
    }

    fn addresses(&mut self, _: &str, _: &mut dyn Iterator<Item = u64>) {}
}

/// Formats an IP address. Addresses with twelve leading zero bytes are shown as IPv4 addresses.
fn address(bytes: &[u8]) -> String {
    let Ok(bytes) = <[u8; 16]>::try_from(bytes) else { return String::new() };
    match bytes {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d] => Ipv4Addr::new(a, b, c, d).to_string(),
        bytes => Ipv6Addr::from(bytes).to_string(),
    }
}

/// Formats each field that the mask selects as `name=value`, or as `name=value/mask` if the mask does not select all
/// bits of the field.
pub(super) fn matches(mask: &OuterHeaders, value: &OuterHeaders) -> Vec<String> {
    let all = OuterHeaders::parse(&[0xff; OuterHeaders::LEN]);
    let ipv4 = Ipv4Addr::BROADCAST.to_string();
    let texts = [&OuterHeaders::default(), &all, mask, value].map(|headers| Fields::of(headers).0);
    let [none, all, mask, value] = texts;
    let fields = none.into_iter().zip(all).zip(mask).zip(value);
    fields
        .filter(|(((none, _), mask), _)| mask != none)
        .map(|(((_, all), (_, mask)), (name, value))| match mask == all.1 || mask == ipv4 {
            true => format!("{name}={value}"),
            false => format!("{name}={value}/{mask}"),
        })
        .collect()
}

/// Returns the names of the fields selected by a mask. If the mask does not select all bits of a field, the field's
/// mask follows its name.
pub(super) fn selects(mask: &OuterHeaders) -> Vec<String> {
    let all = OuterHeaders::parse(&[0xff; OuterHeaders::LEN]);
    let texts = [&OuterHeaders::default(), &all, mask].map(|headers| Fields::of(headers).0);
    let [none, all, mask] = texts;
    let fields = none.into_iter().zip(all).zip(mask);
    fields
        .filter(|((none, _), mask)| mask != none)
        .map(|((_, (_, all)), (name, mask))| if mask == all { name } else { format!("{name}/{mask}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use protocol::ids::MacAddr;

    use super::*;

    #[test]
    fn only_fields_in_mask_are_shown() {
        let mut src_ip = [0; 16];
        src_ip[12..].fill(0xff);
        let mask = OuterHeaders {
            dst_mac: MacAddr([1, 0, 0, 0, 0, 0]),
            ip_protocol: 0xff,
            customer_tag: true,
            src_ip,
            ..OuterHeaders::default()
        };
        src_ip[12..].copy_from_slice(&[10, 0, 0, 1]);
        let value = OuterHeaders { dst_mac: MacAddr([1; 6]), ip_protocol: 6, ttl: 9, src_ip, ..mask };
        assert_eq!(
            matches(&mask, &value),
            [
                "dst_mac=01:01:01:01:01:01/01:00:00:00:00:00",
                "ip_protocol=6",
                "customer_tag=1",
                "src_ip=10.0.0.1"
            ]
        );
        assert_eq!(selects(&OuterHeaders { vlan_id: 0xfff, ..OuterHeaders::default() }), ["vlan_id"]);
        assert!(matches(&OuterHeaders::default(), &value).is_empty());
    }
}
