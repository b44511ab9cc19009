// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Two tensors share a byte where the address of a byte of one equals that of a byte of the other:
//
//   a.begin + sum a.stride[d] i[d] + byte  =  b.begin + sum b.stride[d] j[d] + byte'
//
// Counting j and byte' from their far ends turns every sign positive. What remains is whether
//
//   sum step[t] * n[t] = target,     0 <= n[t] <= most[t]
//
// has a solution. Terms of equal step merge. From the largest step down, what the smaller ones can
// make up leaves one or two candidates for each n where strides nest, as those of real tensors do.
//
// Two elements of one tensor share memory where sum step[d] * delta[d] = 0 with |delta[d]| <=
// most[d], not all 0. The largest step k with delta[k] != 0 may be taken to have delta[k] >= 1, and
// counting from the far ends gives the same kind of equation once more, one for each k.
#include "op/overlap.hpp"

#include <algorithm>
#include <array>
#include <span>

namespace perseid::internal::op {
namespace {

__extension__ typedef __int128 Wide;

constexpr Wide kAddresses = Wide{1} << 64;

struct Term {
  Wide step;
  Wide most;
};

struct TermList {
  std::array<Term, 2 * kMaxDims + 2> terms;
  size_t count = 0;

  void add(Wide step, Wide most) {
    if (most > 0) terms[count++] = {step, most};
  }
  void add(const Tensor& tensor) {
    const int64_t bytes = size_of(tensor.dtype);
    add(1, bytes - 1);
    for (int32_t d = 0; d < tensor.rank; ++d) {
      const Wide stride = Wide{tensor.stride[d]} * bytes;
      if (stride != 0) add(stride < 0 ? -stride : stride, tensor.shape[d] - 1);
    }
  }
  void sort_and_merge() {
    std::sort(terms.begin(), terms.begin() + count,
              [](const Term& x, const Term& y) { return x.step > y.step; });
    size_t kept = 0;
    for (size_t i = 0; i < count; ++i) {
      if (kept > 0 && terms[kept - 1].step == terms[i].step) {
        terms[kept - 1].most += terms[i].most;
      } else {
        terms[kept++] = terms[i];
      }
    }
    count = kept;
  }
  std::span<const Term> span() const { return std::span(terms).first(count); }
};

// How many candidates are tried before the answer is "yes" unproven.
constexpr int kSearchBudget = 2000;

bool solvable(std::span<const Term> terms, Wide target, int* budget) {
  if (target == 0) return true;
  if (terms.empty() || target < 0) return false;
  if (--*budget < 0) return true;
  Wide rest = 0;  // the most that the smaller terms make up
  for (const Term& term : terms.subspan(1)) rest += term.step * term.most;
  const Term& term = terms.front();
  const Wide highest = std::min(term.most, target / term.step);
  const Wide lowest = target <= rest ? Wide{0} : (target - rest + term.step - 1) / term.step;
  for (Wide n = highest; n >= lowest; --n)
    if (solvable(terms.subspan(1), target - n * term.step, budget)) return true;
  return false;
}

}  // namespace

bool is_empty(const Tensor& tensor) {
  return std::find(tensor.shape, tensor.shape + tensor.rank, 0) != tensor.shape + tensor.rank;
}

bool address_range(const Tensor& tensor, AddressRange* range) {
  if (is_empty(tensor)) {
    *range = {};
    return true;
  }
  Wide begin = static_cast<Wide>(reinterpret_cast<uintptr_t>(tensor.data));
  Wide end = begin + size_of(tensor.dtype);
  for (int32_t d = 0; d < tensor.rank; ++d) {
    Wide reach = 0;
    const bool wraps = __builtin_mul_overflow(Wide{tensor.stride[d]} * size_of(tensor.dtype),
                                              Wide{tensor.shape[d]} - 1, &reach);
    if (wraps || reach < -kAddresses || reach > kAddresses) return false;
    (reach < 0 ? begin : end) += reach;
  }
  if (begin < 0 || end > Wide{INTPTR_MAX}) return false;
  *range = {static_cast<uint64_t>(begin), static_cast<uint64_t>(end)};
  return true;
}

bool elements_are_distinct(const Tensor& tensor) {
  if (is_empty(tensor)) return true;
  TermList list;
  for (int32_t d = 0; d < tensor.rank; ++d) {
    const Wide stride = tensor.stride[d];
    if (stride == 0 && tensor.shape[d] > 1) return false;
    list.add(stride < 0 ? -stride : stride, tensor.shape[d] - 1);
  }
  std::sort(list.terms.begin(), list.terms.begin() + list.count,
            [](const Term& x, const Term& y) { return x.step > y.step; });
  int budget = kSearchBudget;
  Wide reach = 0;  // of the terms smaller than the k-th
  for (size_t k = list.count; k-- > 0;) {
    const Term& term = list.terms[k];
    if (term.step <= reach) {
      TermList equation;
      equation.add(term.step, term.most - 1);
      for (size_t d = k + 1; d < list.count; ++d)
        equation.add(list.terms[d].step, 2 * list.terms[d].most);
      if (solvable(equation.span(), term.step * term.most + reach, &budget)) return false;
    }
    reach += term.step * term.most;
  }
  return true;
}

bool is_same(const Tensor& a, const Tensor& b) {
  return a.data == b.data && a.dtype == b.dtype && a.rank == b.rank &&
         std::equal(a.shape, a.shape + a.rank, b.shape) &&
         std::equal(a.stride, a.stride + a.rank, b.stride);
}

bool overlap(const Tensor& a, const Tensor& b) {
  AddressRange x, y;
  if (!address_range(a, &x) || !address_range(b, &y)) return true;
  if (x.end <= y.begin || y.end <= x.begin || x.begin == x.end || y.begin == y.end) return false;
  TermList list;
  list.add(a);
  list.add(b);
  list.sort_and_merge();
  int budget = kSearchBudget;
  return solvable(list.span(), static_cast<Wide>(y.end) - 1 - static_cast<Wide>(x.begin), &budget);
}

}  // namespace perseid::internal::op
