// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Structs of the C header as callers pass them: `struct_size` says how much of a struct the
// caller's header has. Every function copies what is given into a zeroed struct of this header, so
// that an older caller's missing fields take their defaults, and reads nothing beyond struct_size.
#pragma once

#include <cstddef>
#include <cstring>
#include <tuple>
#include <utility>

#include "op/check.hpp"
#include "perseid/perseid.h"

namespace perseid::internal::api {

struct StructFacts {
  const char* name;
  size_t size;
  size_t alignment;
  size_t least;  // ends after the last field that has no default
};

template <class Struct>
struct FactsOf;

#define PERSEID_STRUCT_FACTS(type, least)                                             \
  template <>                                                                         \
  struct FactsOf<type> {                                                              \
    static constexpr StructFacts kFacts{#type, sizeof(type), alignof(type), (least)}; \
    static_assert((least) % alignof(type) == 0 && (least) <= sizeof(type));           \
  }
PERSEID_STRUCT_FACTS(perseid_context_options, offsetof(perseid_context_options, device_index));
PERSEID_STRUCT_FACTS(perseid_plan_info, offsetof(perseid_plan_info, forward_flops));
PERSEID_STRUCT_FACTS(perseid_softmax_desc, offsetof(perseid_softmax_desc, scale));
PERSEID_STRUCT_FACTS(perseid_softmax_forward_args, offsetof(perseid_softmax_forward_args, visible));
PERSEID_STRUCT_FACTS(perseid_softmax_backward_args, sizeof(perseid_softmax_backward_args));
PERSEID_STRUCT_FACTS(perseid_attention_desc, offsetof(perseid_attention_desc, value_dim));
PERSEID_STRUCT_FACTS(perseid_attention_forward_args, offsetof(perseid_attention_forward_args, lse));
PERSEID_STRUCT_FACTS(perseid_attention_backward_args,
                     offsetof(perseid_attention_backward_args, grad_lse));
PERSEID_STRUCT_FACTS(perseid_matmul_desc, offsetof(perseid_matmul_desc, alpha));
PERSEID_STRUCT_FACTS(perseid_matmul_args, offsetof(perseid_matmul_args, arrival_a));
PERSEID_STRUCT_FACTS(perseid_async_operand, sizeof(perseid_async_operand));
PERSEID_STRUCT_FACTS(perseid_arrival, offsetof(perseid_arrival, epoch_ptr));
PERSEID_STRUCT_FACTS(perseid_chunk_sink, offsetof(perseid_chunk_sink, epoch_ptr));
PERSEID_STRUCT_FACTS(perseid_group_options, offsetof(perseid_group_options, rendezvous));
PERSEID_STRUCT_FACTS(perseid_group_info, sizeof(perseid_group_info));
PERSEID_STRUCT_FACTS(perseid_gather_product, offsetof(perseid_gather_product, alpha));
PERSEID_STRUCT_FACTS(perseid_all_gather_matmul_desc,
                     offsetof(perseid_all_gather_matmul_desc, chunks));
PERSEID_STRUCT_FACTS(perseid_all_gather_matmul_args,
                     offsetof(perseid_all_gather_matmul_args, gathered));
PERSEID_STRUCT_FACTS(perseid_matmul_reduce_desc, offsetof(perseid_matmul_reduce_desc, deadline_ns));
PERSEID_STRUCT_FACTS(perseid_matmul_reduce_args, offsetof(perseid_matmul_reduce_args, deadline_ns));
PERSEID_STRUCT_FACTS(perseid_context_attention_desc,
                     offsetof(perseid_context_attention_desc, chunks));
PERSEID_STRUCT_FACTS(perseid_context_attention_forward_args,
                     offsetof(perseid_context_attention_forward_args, deadline_ns));
PERSEID_STRUCT_FACTS(perseid_context_attention_backward_args,
                     offsetof(perseid_context_attention_backward_args, deadline_ns));
#undef PERSEID_STRUCT_FACTS

// Copies into `current`, which has facts.size bytes. A smaller struct leaves zeros; a larger one is
// refused where its unknown tail is not zero, for it says what this library does not know.
bool read_struct(op::Check& check, const StructFacts& facts, const void* given, void* current);

template <class Struct>
bool read_struct(op::Check& check, const Struct* given, Struct* current) {
  if (!read_struct(check, FactsOf<Struct>::kFacts, given, static_cast<void*>(current)))
    return false;
  current->struct_size = sizeof(Struct);
  if constexpr (requires { current->reserved; })
    return check.require(current->reserved == 0, FactsOf<Struct>::kFacts.name, ".reserved is ",
                         current->reserved, ", expected 0");
  return true;
}

// Copies of the structs that a struct points to, made as the struct itself is copied.
template <class Struct>
struct Pointees {
  bool read(op::Check&, Struct*) { return true; }
};

template <class... Structs>
class PointeeCopies {
 public:
  // Lets every pointer that is not null point to a copy.
  bool read(op::Check& check, const Structs*&... pointers) {
    return read(check, std::index_sequence_for<Structs...>{}, pointers...);
  }

 private:
  template <size_t... I>
  bool read(op::Check& check, std::index_sequence<I...>, const Structs*&... pointers) {
    return (copy(check, pointers, std::get<I>(copies_)) && ...);
  }
  template <class Struct>
  static bool copy(op::Check& check, const Struct*& pointer, Struct& copy) {
    if (pointer == nullptr) return true;
    if (!read_struct(check, pointer, &copy)) return false;
    pointer = &copy;
    return true;
  }
  std::tuple<Structs...> copies_;
};

template <>
struct Pointees<perseid_attention_desc> {
  PointeeCopies<perseid_async_operand> copies;
  bool read(op::Check& check, perseid_attention_desc* desc) {
    return copies.read(check, desc->async_kv);
  }
};
template <>
struct Pointees<perseid_attention_forward_args> {
  PointeeCopies<perseid_arrival> copies;
  bool read(op::Check& check, perseid_attention_forward_args* args) {
    return copies.read(check, args->arrival_kv);
  }
};
template <>
struct Pointees<perseid_context_attention_desc> {
  PointeeCopies<perseid_attention_desc> copies;
  bool read(op::Check& check, perseid_context_attention_desc* desc) {
    return copies.read(check, desc->attention);
  }
};
template <>
struct Pointees<perseid_context_attention_forward_args> {
  PointeeCopies<perseid_attention_forward_args> copies;
  bool read(op::Check& check, perseid_context_attention_forward_args* args) {
    return copies.read(check, args->attention);
  }
};
template <>
struct Pointees<perseid_context_attention_backward_args> {
  PointeeCopies<perseid_attention_backward_args> copies;
  bool read(op::Check& check, perseid_context_attention_backward_args* args) {
    return copies.read(check, args->attention);
  }
};
template <>
struct Pointees<perseid_matmul_desc> {
  PointeeCopies<perseid_async_operand, perseid_async_operand, perseid_async_operand> copies;
  bool read(op::Check& check, perseid_matmul_desc* desc) {
    return copies.read(check, desc->async_a, desc->async_b, desc->sink_c);
  }
};
template <>
struct Pointees<perseid_matmul_args> {
  PointeeCopies<perseid_arrival, perseid_arrival, perseid_chunk_sink> copies;
  bool read(op::Check& check, perseid_matmul_args* args) {
    return copies.read(check, args->arrival_a, args->arrival_b, args->departure_c);
  }
};

}  // namespace perseid::internal::api
