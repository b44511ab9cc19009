// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/wire.hpp"

namespace perseid::internal::collective {
namespace {

constexpr uint32_t kMagic = 0x31445350;  // "PSD1"

}  // namespace

Writer& Writer::number(uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) text_ += static_cast<char>(value >> (8 * i) & 0xff);
  return *this;
}

Writer& Writer::text(std::string_view text) {
  number(text.size(), 4);
  text_ += text;
  return *this;
}

std::string_view Reader::take(size_t bytes) {
  if (!ok_ || rest_.size() < bytes) {
    ok_ = false;
    return {};
  }
  const std::string_view taken = rest_.substr(0, bytes);
  rest_.remove_prefix(bytes);
  return taken;
}

uint64_t Reader::number(int bytes) {
  uint64_t value = 0;
  int shift = 0;
  for (const char byte : take(static_cast<size_t>(bytes))) {
    value |= uint64_t{static_cast<unsigned char>(byte)} << shift;
    shift += 8;
  }
  return value;
}

std::string_view Reader::text(size_t longest) {
  const uint64_t size = number(4);
  if (size > longest) ok_ = false;
  return ok_ ? take(static_cast<size_t>(size)) : std::string_view();
}

std::string encode(const Frame& frame) {
  return Writer()
             .number(kMagic, 4)
             .number(static_cast<uint32_t>(frame.type), 4)
             .number(frame.generation, 4)
             .number(frame.payload.size(), 4)
             .take() +
         frame.payload;
}

bool FrameParser::feed(std::span<const std::byte> bytes, std::vector<Frame>* frames) {
  pending_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  size_t at = 0;
  while (pending_.size() - at >= kFrameHeader) {
    Reader header(std::string_view(pending_).substr(at, kFrameHeader));
    const uint64_t magic = header.number(4), type = header.number(4);
    const auto generation = static_cast<uint32_t>(header.number(4));
    const uint64_t length = header.number(4);
    if (magic != kMagic || type < static_cast<uint32_t>(FrameType::kHello) ||
        type > static_cast<uint32_t>(FrameType::kAbort) || length > kLargestMessage)
      return false;
    if (pending_.size() - at < kFrameHeader + length) break;
    frames->push_back({static_cast<FrameType>(type), generation,
                       pending_.substr(at + kFrameHeader, static_cast<size_t>(length))});
    at += kFrameHeader + static_cast<size_t>(length);
  }
  pending_.erase(0, at);
  return true;
}

size_t FrameParser::missing() const {
  if (pending_.size() < kFrameHeader) return kFrameHeader - pending_.size();
  Reader length(std::string_view(pending_).substr(kFrameHeader - 4, 4));
  return kFrameHeader + static_cast<size_t>(length.number(4)) - pending_.size();
}

std::string Hello::encode() const {
  return Writer()
      .text(token)
      .number(static_cast<uint32_t>(rank), 4)
      .number(static_cast<uint32_t>(size), 4)
      .text(address)
      .take();
}

std::optional<Hello> Hello::decode(std::string_view payload) {
  Reader reader(payload);
  Hello hello;
  hello.token = reader.text(kLongestToken);
  const uint64_t rank = reader.number(4), size = reader.number(4);
  hello.address = reader.text(kLongestAddress);
  if (!reader.complete() || size == 0 || size > kMostRanks || rank >= size) return {};
  hello.rank = static_cast<int32_t>(rank);
  hello.size = static_cast<int32_t>(size);
  return hello;
}

std::string Proposal::encode() const {
  return Writer().number(members).number(generation, 4).take();
}

std::optional<Proposal> Proposal::decode(std::string_view payload) {
  Reader reader(payload);
  Proposal proposal;
  proposal.members = reader.number();
  proposal.generation = static_cast<uint32_t>(reader.number(4));
  if (!reader.complete()) return {};
  return proposal;
}

std::string encode_addresses(const std::vector<std::string>& addresses) {
  Writer writer;
  for (const std::string& address : addresses) writer.text(address);
  return writer.take();
}

std::optional<std::vector<std::string>> decode_addresses(std::string_view payload, int32_t size) {
  Reader reader(payload);
  std::vector<std::string> addresses;
  for (int32_t rank = 0; rank < size && reader.ok(); ++rank)
    addresses.emplace_back(reader.text(kLongestAddress));
  if (!reader.complete()) return {};
  return addresses;
}

bool same_token(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i]) ^
                  static_cast<unsigned char>(b.empty() ? '\0' : b[i % b.size()]);
  return difference == 0;
}

}  // namespace perseid::internal::collective
