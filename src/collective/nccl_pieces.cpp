// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Sums in place of GPUs that NCCL links: every rank computes a part of all rows, and gives each
// other rank the rows that it sums, side by side. On a GPU: a word for each rank, the own part of
// all rows, then an inbox for what each rank gives. In step s a rank gives to the rank s after it
// and takes from the rank s before it, by one exchange between hosts and by copies within one.
#include "collective/nccl_exchanges.hpp"

namespace perseid::internal::collective {
namespace {

class NcclPieces final : public ReduceTransport, private NcclExchanges {
 public:
  NcclPieces(const TransportSite& site, const Shards& of_shards, int64_t rows)
      : NcclExchanges(site),
        shards_(of_shards),
        inboxes_(DeviceMemory::aligned(of_shards.bytes())),
        inbox_(DeviceMemory::aligned(static_cast<size_t>(of_shards.outer * rows * of_shards.inner *
                                                         size_of(of_shards.dtype)))) {}
  ~NcclPieces() override { drain(); }
  Status make(const TransportSite&) {
    const auto ranks = static_cast<size_t>(size);
    return NcclExchanges::make(std::vector<Bytes>(ranks, {ranks, inboxes_ + ranks * inbox_}));
  }

  std::byte* partial() const override { return data_of(own); }
  uint32_t* signals() const override { return words_of(own) + own; }
  Status start(const Operation& of, const Sending&) override {
    operation = of;
    given_.clear();
    taken_.clear();
    return {};
  }
  Status give(int32_t to, const Tensor& piece, size_t at) override {
    given_.push_back({to, piece, at});
    return {};
  }
  void take(int32_t from, const Tensor& piece, size_t at) override {
    taken_.push_back({from, piece, at});
  }
  // The operation begins when the partial is complete.
  Status send(const Sending& sending) override {
    const cuda::Gpu::Current current(*gpu);
    Status status = rank->begin(
        operation, {.stream = sending.stream,
                    .epoch = sending.epoch,
                    .parts = {.words = words_of(own), .count = size, .ranks = size, .chunks = 1},
                    .record = sending.record,
                    .operand = sending.operand});
    if (status.ok()) status = rank->announce();
    for (int32_t step = 1; status.ok() && step < size; ++step) {
      const int32_t to = after(step), from = after(-step);
      if (on_host(to)) status = push(to, sending);
      for (const Piece& piece : given_)
        if (piece.rank == to && !on_host(to)) to_send(to, piece.rows);
      for (const Piece& piece : taken_)
        if (piece.rank == from && !on_host(from))
          to_receive(from, piece.rows, inbox(own, from) + piece.at);
      if (status.ok()) status = exchange();
      if (status.ok() && !on_host(from))
        status = queue().write_word(words_of(own) + from, sending.epoch);
    }
    return status;
  }
  Status part(const Operation&, const Sending&, int32_t of, int32_t, Tensor* part) override {
    *part = shards_.view(partial(), 0, 0);
    if (of != own) part->data = inbox(own, of);
    return {};
  }
  perseid_arrival arrival(const Operation& of, uint32_t epoch) const override {
    return rank->arrival(of, words_of(own), epoch);
  }
  int64_t arrivals() const override { return size; }
  Status finish(const Sending& sending) override {
    const cuda::Gpu::Current current(*gpu);
    return rank->end(sending.stream);
  }

 private:
  struct Piece {
    int32_t rank;
    Tensor rows;  // in the own partial
    size_t at;
  };

  // At `at`, this rank or one of this host.
  std::byte* inbox(int32_t at, int32_t source) const {
    return data_of(at) + inboxes_ + static_cast<size_t>(source) * inbox_;
  }
  Status push(int32_t to, const Sending& sending) {
    cuda::CopyQueue& to_host = rank->sending();
    Status status = rank->await(to);
    for (const Piece& piece : given_)
      if (status.ok() && piece.rank == to)
        status = to_host.copy(piece.rows, without_gaps(piece.rows, inbox(to, own) + piece.at));
    return status.ok() ? to_host.write_word(words_of(to) + own, sending.epoch) : status;
  }

  const Shards shards_;
  const size_t inboxes_, inbox_;  // where they begin, the bytes of one
  std::vector<Piece> given_, taken_;
};

}  // namespace

Status make_nccl_pieces(const TransportSite& site, const Shards& shards, int64_t rows,
                        std::unique_ptr<ReduceTransport>* transport) {
  return make_transport<NcclPieces>(site, shards, rows, transport);
}

}  // namespace perseid::internal::collective
