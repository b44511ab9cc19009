// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
/// \file
/// Ragged batches: lengths to cumulative lengths, padded tensors to packed ones and back. Included
/// by perseid.hpp.
#ifndef PERSEID_RAGGED_HPP_
#define PERSEID_RAGGED_HPP_

#include "perseid/context.hpp"
#include "perseid/ragged.h"

namespace perseid {
inline namespace v0 {

// ---- Ragged batches ---------------------------------------------------------------------------

/// What pack and unpack do with rows that belong to no sequence.
enum class Rest : uint32_t {
  kKeep = 0,  ///< they stay as they are
  kZero = 1,  ///< they become 0: pack is then the adjoint of unpack
};

/// Writes {0, l0, l0 + l1, ...}. lengths: i32 or i64 [batch], or bool or u8 [batch, longest] with
/// true where a row counts; cu_seqlens: i32 or i64 [batch + 1]. See perseid_ragged_lengths.
/// \snippet snippets.cpp ragged
inline void ragged_lengths(const Context& context, const Tensor& lengths, int64_t longest,
                           int64_t total, const Tensor& cu_seqlens, Stream stream = nullptr) {
  detail::check(
      perseid_ragged_lengths(context.get(), lengths.dl(), longest, total, cu_seqlens.dl(), stream));
}
/// padded [batch, longest, ...] to packed [total, ...]. See perseid_ragged_pack.
/// \snippet snippets.cpp ragged
inline void pack(const Context& context, const Tensor& padded, const Tensor& cu_seqlens,
                 const Tensor& packed, Rest rest = Rest::kZero, Stream stream = nullptr) {
  detail::check(perseid_ragged_pack(context.get(), padded.dl(), cu_seqlens.dl(), packed.dl(),
                                    static_cast<uint32_t>(rest), stream));
}
/// packed [total, ...] to padded [batch, longest, ...]. See perseid_ragged_unpack.
/// \snippet snippets.cpp ragged
inline void unpack(const Context& context, const Tensor& packed, const Tensor& cu_seqlens,
                   const Tensor& padded, Rest rest = Rest::kZero, Stream stream = nullptr) {
  detail::check(perseid_ragged_unpack(context.get(), packed.dl(), cu_seqlens.dl(), padded.dl(),
                                      static_cast<uint32_t>(rest), stream));
}

}  // namespace v0
}  // namespace perseid

#endif  // PERSEID_RAGGED_HPP_
