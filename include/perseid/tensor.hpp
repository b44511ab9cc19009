// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
/// \file
/// The part of perseid.hpp that describes memory: errors, element types, strided views and
/// workspaces. Include perseid.hpp.
#ifndef PERSEID_TENSOR_HPP_
#define PERSEID_TENSOR_HPP_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "perseid/perseid.h"

/// Perseid's C++ interface.
namespace perseid {
/// Inline, so that the names of this layer link beside the library's own.
inline namespace v0 {

// ---- Errors -----------------------------------------------------------------------------------

/// What every failure throws. what() says what was expected, what was got, and what to do.
/// \snippet snippets.cpp error
class Error : public std::runtime_error {
 public:
  /// Holds a status and the sentence that explains it.
  Error(perseid_status status, const std::string& sentence)
      : std::runtime_error(sentence), status_(status) {}
  /// Which kind of failure it was.
  perseid_status status() const noexcept { return status_; }

 private:
  perseid_status status_;
};

namespace detail {

inline void check(perseid_status status) {
  if (status != PERSEID_OK) throw Error(status, perseid_last_error());
}

inline void append(std::string& sentence, const char* text) { sentence += text; }
template <class Number>
void append(std::string& sentence, Number number) {
  sentence += std::to_string(number);
}

/// `pieces`, text and numbers, make the sentence; put together only where it is needed, so that a
/// requirement that holds allocates nothing.
template <class... Pieces>
void require(bool condition, const Pieces&... pieces) {
  if (condition) return;
  std::string sentence;
  (append(sentence, pieces), ...);
  throw Error(PERSEID_INVALID_ARGUMENT, sentence);
}

template <class Struct>
Struct sized() {
  Struct value{};
  value.struct_size = sizeof(Struct);
  return value;
}

}  // namespace detail

/// The version of the library that runs, "MAJOR.MINOR.PATCH".
/// \snippet snippets.cpp version
inline std::string_view version() { return perseid_version(); }

// ---- Tensors ----------------------------------------------------------------------------------

/// Element types. Operations compute in the first four, matmul also in the 8-bit ones; the rest are
/// for masks, lengths and files.
enum class DType : uint32_t {
  kNone = 0,             ///< "as the other operand" in options; on a tensor: a type not listed here
  kF16 = PERSEID_F16,    ///< IEEE binary16
  kBF16 = PERSEID_BF16,  ///< bfloat16
  kF32 = PERSEID_F32,    ///< IEEE binary32
  kF64 = PERSEID_F64,    ///< IEEE binary64
  kF8E4M3 = PERSEID_F8E4M3,  ///< e4m3fn: the largest number 448, no infinity
  kF8E5M2 = PERSEID_F8E5M2,  ///< the largest number 57344
  kBool = 16,                ///< one byte: masks
  kU8 = 17,                  ///< unsigned bytes: masks
  kI32 = 18,                 ///< lengths
  kI64 = 19,                 ///< lengths
};
inline constexpr DType f16 = DType::kF16;        ///< short for DType::kF16
inline constexpr DType bf16 = DType::kBF16;      ///< short for DType::kBF16
inline constexpr DType f32 = DType::kF32;        ///< short for DType::kF32
inline constexpr DType f64 = DType::kF64;        ///< short for DType::kF64
inline constexpr DType f8e4m3 = DType::kF8E4M3;  ///< short for DType::kF8E4M3
inline constexpr DType f8e5m2 = DType::kF8E5M2;  ///< short for DType::kF8E5M2
inline constexpr DType boolean = DType::kBool;   ///< short for DType::kBool
inline constexpr DType u8 = DType::kU8;          ///< short for DType::kU8
inline constexpr DType i32 = DType::kI32;        ///< short for DType::kI32
inline constexpr DType i64 = DType::kI64;        ///< short for DType::kI64

/// The dtype of a C++ element type. Specialise it for 16-bit types of your own.
/// \snippet snippets.cpp dtype_of
template <class T>
inline constexpr DType dtype_of = DType::kNone;
/// \cond
template <>
inline constexpr DType dtype_of<float> = f32;
template <>
inline constexpr DType dtype_of<double> = f64;
template <>
inline constexpr DType dtype_of<bool> = boolean;
template <>
inline constexpr DType dtype_of<uint8_t> = u8;
template <>
inline constexpr DType dtype_of<int32_t> = i32;
template <>
inline constexpr DType dtype_of<int64_t> = i64;
/// \endcond

namespace detail {

struct DTypeEntry {
  DType dtype;
  DLDataType dl;
};
inline constexpr DTypeEntry kDTypes[] = {
    {f16, {kDLFloat, 16, 1}},
    {bf16, {kDLBfloat, 16, 1}},
    {f32, {kDLFloat, 32, 1}},
    {f64, {kDLFloat, 64, 1}},
    {boolean, {kDLBool, 8, 1}},
    {u8, {kDLUInt, 8, 1}},
    {i32, {kDLInt, 32, 1}},
    {i64, {kDLInt, 64, 1}},
    {f8e4m3, {kDLFloat8_e4m3fn, 8, 1}},
    {f8e5m2, {kDLFloat8_e5m2, 8, 1}},
};

}  // namespace detail

/// Up to PERSEID_MAX_DIMS numbers: a shape, strides in elements, or an order of dimensions.
class Dims {
 public:
  Dims() = default;  ///< of no dimensions
  /// Takes the numbers in braces, such as {2, 3}.
  Dims(std::initializer_list<int64_t> values) { assign(values.begin(), values.size()); }
  /// Takes the numbers of any array.
  Dims(std::span<const int64_t> values) { assign(values.data(), values.size()); }

  size_t size() const { return size_; }                              ///< how many numbers
  bool empty() const { return size_ == 0; }                          ///< no numbers
  const int64_t* begin() const { return values_.data(); }            ///< the first
  const int64_t* end() const { return values_.data() + size_; }      ///< behind the last
  int64_t operator[](size_t index) const { return values_[index]; }  ///< the index-th

 private:
  void assign(const int64_t* values, size_t size) {
    detail::require(size <= PERSEID_MAX_DIMS, "a tensor has at most ", PERSEID_MAX_DIMS,
                    " dimensions, got ", size, "; merge some of them");
    std::copy_n(values, size, values_.begin());
    size_ = size;
  }
  std::array<int64_t, PERSEID_MAX_DIMS> values_{};
  size_t size_ = 0;
};

/// A strided view of memory that somebody else owns. Cheap to copy. A default-constructed one is
/// absent: it stands for an optional argument that is not given. Const data is accepted, since
/// operations write only to the tensors that they name as outputs.
/// \snippet snippets.cpp tensor
class Tensor {
 public:
  Tensor() = default;  ///< absent
  /// Another view of the same memory.
  Tensor(const Tensor& other) { *this = other; }
  /// Another view of the same memory.
  Tensor& operator=(const Tensor& other) {
    dl_ = other.dl_;
    shape_ = other.shape_;
    strides_ = other.strides_;
    if (other.present()) point();
    return *this;
  }

  /// `shape` elements of `dtype` from `data`; `strides` in elements, row-major where omitted.
  Tensor(const void* data, DType dtype, const Dims& shape, const Dims& strides = {},
         DLDevice device = {kDLCPU, 0}) {
    const auto* entry = std::find_if(std::begin(detail::kDTypes), std::end(detail::kDTypes),
                                     [&](const auto& e) { return e.dtype == dtype; });
    detail::require(entry != std::end(detail::kDTypes),
                    "a tensor needs a dtype such as perseid::f32; got none");
    detail::require(strides.empty() || strides.size() == shape.size(),
                    "strides must be as many as dimensions: got ", strides.size(), " for ",
                    shape.size());
    dl_.data = const_cast<void*>(data);
    dl_.device = device;
    dl_.ndim = static_cast<int32_t>(shape.size());
    dl_.dtype = entry->dl;
    std::copy(shape.begin(), shape.end(), shape_.begin());
    if (strides.empty()) {
      make_row_major();
    } else {
      std::copy(strides.begin(), strides.end(), strides_.begin());
    }
    point();
  }

  /// The dtype from the element type: Tensor(floats, {rows, columns}).
  template <class T>
  requires(dtype_of<std::remove_const_t<T>> != DType::kNone)
      Tensor(T* data, const Dims& shape, const Dims& strides = {})
      : Tensor(data, dtype_of<std::remove_const_t<T>>, shape, strides) {}

  /// A view of the same memory as any other DLPack tensor.
  explicit Tensor(const DLTensor& other) : dl_(other) {
    const auto ndim = static_cast<size_t>(std::max(other.ndim, 0));
    detail::require(other.ndim == 0 || other.shape != nullptr, "a tensor of ", other.ndim,
                    " dimensions needs a shape, got NULL");
    (void)Dims(std::span<const int64_t>(other.shape, ndim));
    std::copy_n(other.shape, ndim, shape_.begin());
    if (other.strides == nullptr) {
      make_row_major();
    } else {
      std::copy_n(other.strides, ndim, strides_.begin());
    }
    point();
  }

  /// Given, not default-constructed.
  bool present() const { return dl_.shape != nullptr; }
  int32_t ndim() const { return dl_.ndim; }                        ///< the number of dimensions
  int64_t size(int32_t dim) const { return shape_[at(dim)]; }      ///< of one dimension
  int64_t stride(int32_t dim) const { return strides_[at(dim)]; }  ///< in elements
  /// The sizes of all dimensions.
  Dims shape() const { return Dims(std::span(shape_).first(static_cast<size_t>(dl_.ndim))); }
  /// The product of the sizes.
  int64_t elements() const {
    int64_t count = 1;
    for (int64_t extent : shape()) count *= extent;
    return count;
  }
  /// The element type; DType::kNone where DType has no name for it.
  DType dtype() const {
    for (const auto& [dtype, dl] : detail::kDTypes) {
      if (dl.code == dl_.dtype.code && dl.bits == dl_.dtype.bits && dl.lanes == dl_.dtype.lanes)
        return dtype;
    }
    return DType::kNone;
  }
  /// The first element.
  template <class T = void>
  T* data() const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(dl_.data) + dl_.byte_offset);
  }
  /// Elements lie in row-major order without gaps.
  bool contiguous() const {
    int64_t expected = 1;
    for (int32_t i = dl_.ndim - 1; i >= 0; --i) {
      if (size(i) != 1 && stride(i) != expected) return false;
      expected *= size(i);
    }
    return true;
  }

  /// The view with two dimensions exchanged. Dimensions may be negative, counting from the last.
  /// \snippet snippets.cpp views
  Tensor transposed(int32_t first = -2, int32_t second = -1) const {
    Tensor view = *this;
    std::swap(view.shape_[at(first)], view.shape_[at(second)]);
    std::swap(view.strides_[at(first)], view.strides_[at(second)]);
    return view;
  }
  /// Dimension i of the view is dimension order[i] of this tensor.
  /// \snippet snippets.cpp views
  Tensor permuted(const Dims& order) const {
    std::array<bool, PERSEID_MAX_DIMS> used{};
    Tensor view = *this;
    for (size_t i = 0; i < order.size(); ++i) {
      const size_t from = at(static_cast<int32_t>(order[i]));
      detail::require(order.size() == static_cast<size_t>(dl_.ndim) && !used[from],
                      "permuted() needs every dimension once");
      used[from] = true;
      view.shape_[i] = shape_[from];
      view.strides_[i] = strides_[from];
    }
    return view;
  }
  /// Elements [begin, end) along `dim`.
  /// \snippet snippets.cpp views
  Tensor slice(int32_t dim, int64_t begin, int64_t end) const {
    detail::require(0 <= begin && begin <= end && end <= size(dim), "slice [", begin, ", ", end,
                    ") lies outside a dimension of ", size(dim));
    Tensor view = *this;
    view.shape_[at(dim)] = end - begin;
    view.advance(begin * stride(dim));
    return view;
  }
  /// Element `index` along `dim`, which the view no longer has.
  /// \snippet snippets.cpp views
  Tensor select(int32_t dim, int64_t index) const {
    Tensor view = slice(dim, index, index + 1);
    for (size_t i = at(dim) + 1; i < static_cast<size_t>(dl_.ndim); ++i) {
      view.shape_[i - 1] = shape_[i];
      view.strides_[i - 1] = strides_[i];
    }
    --view.dl_.ndim;
    return view;
  }
  /// The same elements in another shape. This tensor must be contiguous.
  /// \snippet snippets.cpp views
  Tensor reshaped(const Dims& to) const {
    int64_t count = 1;
    for (int64_t extent : to) count *= extent;
    detail::require(contiguous() && count == elements(),
                    "reshaped() needs a contiguous tensor of as many elements: got ", elements(),
                    " for a shape of ", count);
    Tensor view = *this;
    view.dl_.ndim = static_cast<int32_t>(to.size());
    std::copy(to.begin(), to.end(), view.shape_.begin());
    view.make_row_major();
    return view;
  }

  /// The DLPack form, NULL where absent. It points into this object and lives as long.
  const DLTensor* dl() const { return present() ? &dl_ : nullptr; }

 private:
  size_t at(int32_t dim) const {
    const int32_t index = dim < 0 ? dim + dl_.ndim : dim;
    detail::require(0 <= index && index < dl_.ndim, "dimension ", dim, " of a tensor of ", dl_.ndim,
                    " dimensions");
    return static_cast<size_t>(index);
  }
  void point() {
    dl_.shape = shape_.data();
    dl_.strides = strides_.data();
  }
  void make_row_major() {
    int64_t step = 1;
    for (size_t i = static_cast<size_t>(dl_.ndim); i-- > 0;) {
      strides_[i] = step;
      step *= shape_[i];
    }
  }
  void advance(int64_t count) {
    if (dl_.data == nullptr) return;
    dl_.data = static_cast<std::byte*>(dl_.data) + count * dl_.dtype.bits / 8;
  }

  DLTensor dl_{};
  std::array<int64_t, PERSEID_MAX_DIMS> shape_{};
  std::array<int64_t, PERSEID_MAX_DIMS> strides_{};
};

// ---- Workspace --------------------------------------------------------------------------------

/// Scratch memory on the host, reusable by any number of plans in turn, one execution at a time.
/// Plans grow it; its content is not kept when it grows.
/// \snippet snippets.cpp workspace
class Workspace {
 public:
  static constexpr size_t kAlignment = 64;  ///< of the memory, in bytes

  Workspace() = default;  ///< empty
  /// Begins with this size.
  explicit Workspace(size_t bytes) { reserve(bytes); }
  /// Grows to at least `bytes`.
  void reserve(size_t bytes) {
    if (bytes <= size_) return;
    memory_.reset();
    size_ = 0;
    void* memory = ::operator new (bytes, std::align_val_t{kAlignment}, std::nothrow);
    if (memory == nullptr) {
      throw Error(PERSEID_OUT_OF_MEMORY, "a workspace of " + std::to_string(bytes) +
                                             " bytes does not fit in memory; make the problem "
                                             "smaller or free some memory");
    }
    memory_.reset(static_cast<std::byte*>(memory));
    size_ = bytes;
  }
  size_t size() const { return size_; }  ///< in bytes
  /// Its memory.
  operator std::span<std::byte>() const { return {memory_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const {
      ::operator delete (memory, std::align_val_t{kAlignment});
    }
  };
  std::unique_ptr<std::byte, Free> memory_;
  size_t size_ = 0;
};

/// The workspace of one execution: a Workspace, which grows if it is too small, or the caller's own
/// memory.
class Scratch {
 public:
  /// A Workspace, which grows where it is too small.
  Scratch(Workspace& workspace) : workspace_(&workspace) {}
  /// Memory of the caller, of the context's device.
  Scratch(std::span<std::byte> memory) : memory_(memory) {}
  /// The memory for an execution that needs `bytes`.
  std::span<std::byte> of(size_t bytes) const {
    if (workspace_ == nullptr) return memory_;
    workspace_->reserve(bytes);
    return *workspace_;
  }

 private:
  Workspace* workspace_ = nullptr;
  std::span<std::byte> memory_;
};

}  // namespace v0
}  // namespace perseid

#endif  // PERSEID_TENSOR_HPP_
