//! Counts the text in a request that costs input tokens, without keeping any of it.
//!
//! Strings count by their bytes, as UTF-8 and without JSON's escapes. Images, sounds and files count as parts:
//! their base64 would be taken for a hundred times the tokens that they cost. The names of members count in
//! tool definitions, which are sent to the model as they are, and not in messages.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// What a value that costs input tokens amounts to.
#[derive(Debug, Default)]
pub(super) struct Text {
    pub(super) bytes: u64,
    pub(super) numbers: u64,
    pub(super) binary_parts: u32,
    /// Elements of the outermost array.
    pub(super) elements: u64,
    /// Strings and arrays in the outermost array; 1 for a string.
    pub(super) prompts: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// `prompt` and `input`: numbers are tokens.
    Input,
    Text,
    /// Tool definitions: names of members cost tokens too.
    Schema,
    /// Deeper inside one of them.
    InnerInput,
    InnerText,
    InnerSchema,
    /// Base64 or a URL: counts as one part.
    Binary,
    /// Base64, a URL or plain text, as its `type` says.
    Source,
}

impl Role {
    const fn inner(self) -> Self {
        match self {
            Self::Input | Self::InnerInput => Self::InnerInput,
            Self::Text | Self::InnerText | Self::Source => Self::InnerText,
            Self::Schema | Self::InnerSchema => Self::InnerSchema,
            Self::Binary => Self::Binary,
        }
    }

    const fn outermost(self) -> bool {
        matches!(self, Self::Input | Self::Text | Self::Schema)
    }

    /// The role of a member of an object.
    const fn of_member(self, name: Name) -> Self {
        match (self.inner(), name) {
            // A schema may well describe a member of that name.
            (Self::InnerSchema, _) => Self::InnerSchema,
            (_, Name::Binary) => Self::Binary,
            (_, Name::Source) => Self::Source,
            (inner, _) => inner,
        }
    }
}

/// The name of a member inside messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    /// What OpenAI's parts keep images, sounds and files in.
    Binary,
    /// What Anthropic's parts keep them in, and plain text too: its `type` tells.
    Source,
    Type,
    Other {
        length: u64,
    },
}

impl<'de> serde::Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameVisitor;
        impl Visitor<'_> for NameVisitor {
            type Value = Name;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a member's name")
            }
            fn visit_str<E>(self, name: &str) -> Result<Name, E> {
                Ok(match name {
                    "image_url" | "input_audio" | "file_data" | "file_url" | "file_id" => Name::Binary,
                    "source" => Name::Source,
                    "type" => Name::Type,
                    _ => Name::Other { length: name.len() as u64 },
                })
            }
        }
        deserializer.deserialize_identifier(NameVisitor)
    }
}

pub(super) struct TextOf<'t> {
    pub(super) text: &'t mut Text,
    pub(super) role: Role,
}

impl<'de> DeserializeSeed<'de> for TextOf<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.role == Role::Binary {
            self.text.binary_parts = self.text.binary_parts.saturating_add(1);
            return deserializer.deserialize_ignored_any(IgnoredAny).map(drop);
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for TextOf<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.text.bytes += text.len() as u64;
        if self.role.outermost() {
            self.text.prompts = 1;
        }
        Ok(())
    }

    fn visit_u64<E>(self, _number: u64) -> Result<(), E> {
        if matches!(self.role, Role::Input | Role::InnerInput) {
            self.text.numbers += 1;
        }
        Ok(())
    }

    fn visit_i64<E>(self, _number: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _number: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _value: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let inner = self.role.inner();
        let mut count = 0_u64;
        let numbers_before = self.text.numbers;
        while seq.next_element_seed(TextOf { text: &mut *self.text, role: inner })?.is_some() {
            count += 1;
        }
        if self.role.outermost() {
            self.text.elements = count;
            let flat_numbers = self.text.numbers - numbers_before == count && count > 0;
            // One array of numbers is one prompt; an array of arrays has as many as it has elements.
            self.text.prompts = if flat_numbers && self.text.bytes == 0 { 1 } else { count };
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        if self.role == Role::Source {
            return source(self.text, map);
        }
        while let Some(name) = map.next_key::<Name>()? {
            if let (Role::InnerSchema, Name::Other { length }) = (self.role.inner(), name) {
                self.text.bytes += length;
            }
            let role = self.role.of_member(name);
            map.next_value_seed(TextOf { text: &mut *self.text, role })?;
        }
        if self.role.outermost() {
            self.text.elements = 1;
        }
        Ok(())
    }
}

/// Anthropic's `source`: text when its `type` is none of the binary ones.
fn source<'de, A: MapAccess<'de>>(text: &mut Text, mut map: A) -> Result<(), A::Error> {
    let mut inside = Text::default();
    let mut binary = false;
    while let Some(name) = map.next_key::<Name>()? {
        if name == Name::Type {
            let kind = map.next_value::<serde_json::Value>()?;
            binary = matches!(kind.as_str(), Some("base64" | "url" | "file"));
        } else {
            map.next_value_seed(TextOf { text: &mut inside, role: Role::InnerText })?;
        }
    }
    if binary {
        text.binary_parts = text.binary_parts.saturating_add(1);
    } else {
        text.bytes += inside.bytes;
        text.binary_parts = text.binary_parts.saturating_add(inside.binary_parts);
    }
    Ok(())
}
