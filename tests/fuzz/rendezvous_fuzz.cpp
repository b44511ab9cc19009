// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Any bytes that a stranger sends to the rendezvous are either refused, or frames whose lengths are
// within bounds and whose payloads decode to numbers within theirs; however they are cut into
// reads, the frames are the same.
#include "collective/wire.hpp"
#include "driver.hpp"

namespace {

using namespace perseid::internal::collective;
using perseid_fuzz::require;

struct Parsed {
  bool accepted = true;
  std::vector<Frame> frames;
};

Parsed parse(std::span<const std::byte> bytes, size_t step) {
  Parsed parsed;
  FrameParser parser;
  for (size_t at = 0; at < bytes.size() && parsed.accepted; at += step) {
    require(parser.missing() > 0 && parser.missing() <= kFrameHeader + kLargestMessage,
            "what is missing of a frame is bounded");
    parsed.accepted =
        parser.feed(bytes.subspan(at, std::min(step, bytes.size() - at)), &parsed.frames);
  }
  return parsed;
}

void check(const Frame& frame) {
  require(frame.payload.size() <= kLargestMessage, "payloads are bounded");
  if (const auto hello = Hello::decode(frame.payload)) {
    require(0 <= hello->rank && hello->rank < hello->size && hello->size <= kMostRanks,
            "a rank is one of the group's");
    require(hello->token.size() <= kLongestToken && hello->address.size() <= kLongestAddress,
            "texts are bounded");
    require(hello->encode() == frame.payload, "a hello is written as it is read");
  }
  if (const auto proposal = Proposal::decode(frame.payload))
    require(proposal->encode() == frame.payload, "a proposal is written as it is read");
  for (const int32_t size : {1, 3, kMostRanks})
    if (const auto addresses = decode_addresses(frame.payload, size))
      require(std::ssize(*addresses) == size && encode_addresses(*addresses) == frame.payload,
              "addresses are written as they are read");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  const Parsed whole = parse(bytes, size + 1), pieces = parse(bytes, 3);
  require(whole.accepted == pieces.accepted && whole.frames.size() == pieces.frames.size(),
          "frames do not depend on how they are read");
  for (size_t i = 0; i < whole.frames.size(); ++i) {
    const Frame& frame = whole.frames[i];
    require(frame.payload == pieces.frames[i].payload, "nor do their payloads");
    require(encode(frame).size() == kFrameHeader + frame.payload.size(), "a frame has a header");
    check(frame);
  }
  return 0;
}

std::vector<std::string> perseid_fuzz::seeds() {
  const std::string hello = Hello{"a secret", 1, 3, "unix:/tmp/ranks.1"}.encode();
  const std::string addresses = encode_addresses({"unix:/a", "tcp:127.0.0.1:5", "tcp:[::1]:6"});
  return {encode({FrameType::kHello, 0, hello}),
          encode({FrameType::kAddresses, 0, addresses}) + encode({FrameType::kWelcome, 0, ""}),
          encode({FrameType::kProposal, 2, Proposal{0b1011, 3}.encode()}),
          encode({FrameType::kGoodbye, 1, Writer().number(77).take()}),
          encode({FrameType::kMessage, 1, Writer().number(0, 4).text("").text("m").take()})};
}
