// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The messages that ranks send one another while they open a group, make plans and find out who is
// gone. Data never goes this way. Whatever is read here may come from a stranger: lengths are
// bounded, numbers are checked, and nothing is believed before the token was.
//
// A frame: magic, type, generation, length (32 bits each, little-endian), then `length` bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace perseid::internal::collective {

// Masks of ranks have 64 bits.
inline constexpr int32_t kMostRanks = 64;
constexpr uint64_t bit(int32_t rank) { return uint64_t{1} << rank; }
inline constexpr size_t kLargestMessage = 64 << 10;
inline constexpr size_t kFrameHeader = 16;
inline constexpr size_t kLongestToken = 256;
inline constexpr size_t kLongestAddress = 512;

enum class FrameType : uint32_t {
  kHello = 1,      // the first frame of a connection
  kWelcome = 2,    // its answer
  kRefusal = 3,    // or this one: a sentence
  kAddresses = 4,  // of all ranks
  kMessage = 5,    // of an exchange
  kSegment = 6,    // of an exchange, with the descriptor of shared memory
  kProposal = 7,   // who is to go on
  kGoodbye = 8,    // the rank leaves
  kAbort = 9       // the group has failed: the value of its abort word
};

struct Frame {
  FrameType type = FrameType::kHello;
  uint32_t generation = 0;
  std::string payload;
};

std::string encode(const Frame& frame);

// Cuts a stream of bytes into frames.
class FrameParser {
 public:
  // False: these are not frames of this protocol; the connection is to be closed.
  bool feed(std::span<const std::byte> bytes, std::vector<Frame>* frames);
  bool empty() const { return pending_.empty(); }  // between two frames
  // How many bytes complete the frame, or its header.
  size_t missing() const;

 private:
  std::string pending_;
};

// Numbers and strings in a payload.
class Writer {
 public:
  Writer& number(uint64_t value, int bytes = 8);
  Writer& text(std::string_view text);  // with its length before it
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

class Reader {
 public:
  explicit Reader(std::string_view payload) : rest_(payload) {}
  uint64_t number(int bytes = 8);
  std::string_view text(size_t longest);
  bool ok() const { return ok_; }
  // Whether everything was there, and nothing more.
  bool complete() const { return ok_ && rest_.empty(); }

 private:
  std::string_view take(size_t bytes);

  std::string_view rest_;
  bool ok_ = true;
};

// Who connects.
struct Hello {
  std::string token;
  int32_t rank = 0, size = 0;
  std::string address;  // where the rank listens for the others; "" between two that know

  std::string encode() const;
  static std::optional<Hello> decode(std::string_view payload);
};

// Who is to go on, by the ranks that the group was opened with, and in which generation at least.
struct Proposal {
  uint64_t members = 0;
  uint32_t generation = 0;

  std::string encode() const;
  static std::optional<Proposal> decode(std::string_view payload);
};

// One address for each rank.
std::string encode_addresses(const std::vector<std::string>& addresses);
std::optional<std::vector<std::string>> decode_addresses(std::string_view payload, int32_t size);

// Takes as long wherever the two differ.
bool same_token(std::string_view a, std::string_view b);

}  // namespace perseid::internal::collective
