// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "collective/nccl_exchanges.hpp"

#include <algorithm>

namespace perseid::internal::collective {
namespace {

// NCCL takes some 2000 of both ways at once.
constexpr size_t kMostParts = 256;

// Calls body with the begin and the bytes of each run.
template <class Body>
void for_each_run(const Tensor& part, const Body& body) {
  const ByteRows rows = rows_of(part);
  for (uint64_t row = 0; row < rows.count; ++row)
    body(part.as<std::byte>() + row * rows.stride, static_cast<size_t>(rows.bytes));
}

}  // namespace

Status NcclExchanges::make(std::vector<Bytes> of_ranks) {
  bytes_ = std::move(of_ranks);
  Status status = GpuRank::of(group, operation, gpu, &rank);
  if (status.ok()) status = make_memory();
  return group.exchange(operation, status, "", nullptr);
}

Status NcclExchanges::make_memory() {
  const Bytes& mine = bytes_[static_cast<size_t>(own)];
  const uint32_t before = group.first_epoch() - 1;
  Group* const host = rank->links()->host();
  if (host == nullptr) {
    const Status status = memory_.make(gpu, mine.words, mine.data);
    return status.ok() ? memory_.set_words(before, nullptr) : status;
  }
  std::vector<size_t> all;
  for (int32_t of = 0; of < size; ++of)
    if (on_host(of)) all.push_back(begin_of_data(of) + bytes_[static_cast<size_t>(of)].data + 1);
  return GpuWindows::make(*host, operation, gpu, all, mine.words, before, &windows_);
}

void NcclExchanges::to_send(int32_t to, const Tensor& part) {
  for_each_run(part, [&](const std::byte* data, size_t size_of_run) {
    sent_.push_back({.rank = to, .send = data, .sent = size_of_run});
  });
}

void NcclExchanges::to_receive(int32_t from, const Tensor& part) {
  for_each_run(part, [&](std::byte* data, size_t size_of_run) {
    received_.push_back({.rank = from, .receive = data, .received = size_of_run});
  });
}

void NcclExchanges::to_receive(int32_t from, const Tensor& part, std::byte* data) {
  for_each_run(part, [&](const std::byte*, size_t size_of_run) {
    received_.push_back({.rank = from, .receive = data, .received = size_of_run});
    data += size_of_run;
  });
}

// Where there are many parts, the two ranks of a transfer cut it in the same places.
Status NcclExchanges::exchange() {
  Status status;
  for (size_t at = 0; status.ok() && at < std::max(sent_.size(), received_.size());
       at += kMostParts) {
    exchanged_.clear();
    for (const std::vector<NcclLinks::Part>* ways : {&sent_, &received_}) {
      const size_t begin = std::min(at, ways->size()),
                   end = std::min(at + kMostParts, ways->size());
      exchanged_.insert(exchanged_.end(), ways->begin() + static_cast<std::ptrdiff_t>(begin),
                        ways->begin() + static_cast<std::ptrdiff_t>(end));
    }
    if (!exchanged_.empty()) status = rank->await_room(operation);
    if (status.ok()) status = rank->links()->enqueue(operation, exchanged_, queue().stream());
  }
  sent_.clear();
  received_.clear();
  return status;
}

}  // namespace perseid::internal::collective
