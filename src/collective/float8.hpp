// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// 8-bit operands of products over ranks: the fields of their descriptors, which say of which types
// and with which scales. What only the product looks at is checked where it is made.
#pragma once

#include "collective/plan.hpp"
#include "dispatch/explain.hpp"

namespace perseid::internal::collective {

// Of c where the descriptor names none.
inline DType default_out_dtype(DType dtype) { return is_float8(dtype) ? DType::kF32 : dtype; }
// Of a bias, if not that of c.
inline DType bias_dtype(DType dtype) { return is_float8(dtype) ? DType::kF32 : dtype; }

// Blocks of 128 along k would have to begin where a rank's columns do.
template <class Descriptor>
Scaling read_scaling(op::DescriptorReader& reader, const Descriptor& desc) {
  return static_cast<Scaling>(reader.choice("scaling", desc.scaling, 3,
                                            "PERSEID_SCALE_NONE (0), PERSEID_SCALE_TENSOR (1) or "
                                            "PERSEID_SCALE_ROW (2)"));
}

// `field`: an out_dtype.
inline void refuse_float8_result(op::DescriptorReader& reader, const std::string& field,
                                 DType out_dtype) {
  reader.require(!is_float8(out_dtype), field, " is ", internal::name_of(out_dtype),
                 ", expected f16, bf16 or f32; round c to 8 bits after the operation");
}

template <class Descriptor>
void add_float8_terms(const Descriptor& desc, Terms* terms) {
  terms->equal("b_dtype", static_cast<DType>(desc.b_dtype == 0 ? desc.dtype : desc.b_dtype))
      .equal("scaling", desc.scaling, {"none", "tensor", "row", "block"})
      .equal("accumulation", desc.accumulation, {"promoted", "fast"});
}

template <class Descriptor>
void set_float8(const Descriptor& desc, perseid_matmul_desc* product) {
  product->b_dtype = desc.b_dtype;
  product->scaling = desc.scaling;
  product->accumulation = desc.accumulation;
}

template <class Descriptor>
void describe_float8(const Descriptor& desc, dispatch::Explanation* explanation) {
  const auto add = [&](const char* name, const char* value) {
    explanation->problem.emplace_back(name, value);
  };
  if (desc.b_dtype != 0 && desc.b_dtype != desc.dtype)
    add("b_dtype", internal::name_of(static_cast<DType>(desc.b_dtype)));
  if (desc.scaling != PERSEID_SCALE_NONE)
    add("scaling", desc.scaling == PERSEID_SCALE_ROW ? "row" : "tensor");
  if (desc.accumulation == PERSEID_ACCUMULATE_FAST) add("accumulation", "fast");
}

}  // namespace perseid::internal::collective
