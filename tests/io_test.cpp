// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Tensor files through the C ABI: what is written is read back, in every type, rank and stride; and
// what a hostile file says is never believed. The malformed files are in io_malformed_test.cpp.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/descriptor.hpp"
#include "io_test_tools.hpp"
#include "perseid/perseid.h"

namespace {

using namespace perseid_test;

const std::vector<DLDataType> kNpyTypes = {kBool, kI8,  kI16, kI32, kI64, kU8,
                                           kU16,  kU32, kU64, kF16, kF32, kF64};
const std::vector<DLDataType> kAllTypes = {kBool, kI8,  kI16,  kI32, kI64, kU8,     kU16,   kU32,
                                           kU64,  kF16, kBF16, kF32, kF64, kF8E4M3, kF8E5M2};

void expect_same(const DLTensor& wanted, const DLTensor& got) {
  EXPECT_TRUE(same_type(wanted.dtype, got.dtype));
  EXPECT_EQ(got.device.device_type, kDLCPU);
  ASSERT_EQ(std::vector<int64_t>(wanted.shape, wanted.shape + wanted.ndim),
            std::vector<int64_t>(got.shape, got.shape + got.ndim));
  EXPECT_EQ(elements_of(wanted), elements_of(got));
}

const std::vector<std::vector<int64_t>> kShapes = {
    {}, {0}, {1}, {7}, {3, 4}, {2, 0, 3}, {1, 5, 1}, {2, 3, 4, 5}, {2, 1, 2, 3, 1, 2, 2, 2}};
constexpr Order kOrders[] = {Order::kNone,      Order::kRowMajor,    Order::kColumnMajor,
                             Order::kBackwards, Order::kEverySecond, Order::kRepeated};

TEST(Npy, RoundTripOfEveryTypeRankAndStride) {
  const Folder folder;
  const std::string path = folder.path("a.npy");
  for (const DLDataType dtype : kNpyTypes)
    for (const auto& shape : kShapes)
      for (const Order order : kOrders) {
        // Every type at one shape and every shape in one type: the folder is synced each time.
        if (dtype.bits != 32 && shape.size() != 4) continue;
        SCOPED_TRACE(testing::Message() << "code " << int{dtype.code} << " bits " << int{dtype.bits}
                                        << " rank " << shape.size() << " order " << int(order));
        const Source source(dtype, shape, order);
        ASSERT_EQ(write_one(path, source.tensor()), PERSEID_OK) << perseid_last_error();
        const File file(path);
        ASSERT_TRUE(file.opened()) << perseid_last_error();
        ASSERT_EQ(file.count(), 1u);
        const char* name = nullptr;
        const DLTensor* tensor = nullptr;
        ASSERT_EQ(perseid_file_tensor(file.get(), 0, &name, &tensor), PERSEID_OK);
        EXPECT_STREQ(name, "");
        expect_same(*source.tensor(), *tensor);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor->data) % 64, 0u);
      }
}

TEST(Safetensors, RoundTripOfEveryTypeRankAndStride) {
  const Folder folder;
  const std::string path = folder.path("a.safetensors");
  std::vector<std::unique_ptr<Source>> sources;
  std::vector<std::string> names;
  std::vector<perseid_named_tensor> tensors;
  for (const DLDataType dtype : kAllTypes)
    for (const auto& shape : kShapes)
      for (const Order order : kOrders) {
        sources.push_back(std::make_unique<Source>(dtype, shape, order));
        names.push_back("layer." + std::to_string(sources.size()) + ".\"\\\n\x01/wéight\U0001F320");
      }
  for (size_t i = 0; i < sources.size(); ++i)
    tensors.push_back({names[i].c_str(), sources[i]->tensor()});
  const perseid_key_value metadata[] = {{"format", "pt"}, {"step\t", "1\u20ac"}, {"", ""}};
  ASSERT_EQ(perseid_file_write(path.c_str(), tensors.data(), tensors.size(), metadata, 3),
            PERSEID_OK)
      << perseid_last_error();
  const File file(path);
  ASSERT_TRUE(file.opened()) << perseid_last_error();
  ASSERT_EQ(file.count(), sources.size());
  for (size_t i = 0; i < sources.size(); ++i) {
    const char* name = nullptr;
    const DLTensor *tensor = nullptr, *found = nullptr;
    ASSERT_EQ(perseid_file_tensor(file.get(), i, &name, &tensor), PERSEID_OK);
    EXPECT_EQ(name, names[i]);
    expect_same(*sources[i]->tensor(), *tensor);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor->data) % (tensor->dtype.bits / 8), 0u);
    ASSERT_EQ(perseid_file_find(file.get(), names[i].c_str(), &found), PERSEID_OK);
    EXPECT_EQ(found, tensor);
  }
  for (const perseid_key_value& entry : metadata) {
    const char* value = nullptr;
    ASSERT_EQ(perseid_file_metadata(file.get(), entry.key, &value), PERSEID_OK);
    EXPECT_STREQ(value, entry.value);
  }
  const char* value = "";
  EXPECT_EQ(perseid_file_metadata(file.get(), "absent", &value), PERSEID_OK);
  EXPECT_EQ(value, nullptr);
}

TEST(Safetensors, WithoutTensorsAndWithoutMetadata) {
  const Folder folder;
  const std::string path = folder.path("a.safetensors");
  ASSERT_EQ(perseid_file_write(path.c_str(), nullptr, 0, nullptr, 0), PERSEID_OK);
  const File file(path);
  ASSERT_TRUE(file.opened()) << perseid_last_error();
  EXPECT_EQ(file.count(), 0u);
  const DLTensor* tensor = nullptr;
  EXPECT_EQ(perseid_file_find(file.get(), "w", &tensor), PERSEID_IO_ERROR);
  EXPECT_TRUE(says("it holds no tensors"));
  EXPECT_EQ(perseid_file_tensor(file.get(), 0, nullptr, nullptr), PERSEID_INVALID_ARGUMENT);
  EXPECT_TRUE(says("holds 0 tensors, got the index 0"));
}

TEST(Safetensors, UnreadableTypeRefusesOnlyItsTensor) {
  const Folder folder;
  const std::string path = folder.write(
      "a.safetensors", safetensors(R"({"a":{"dtype":"F8_E8M0","shape":[2,3],"data_offsets":[0,6]},)"
                                   R"("b":{"dtype":"U8","shape":[1],"data_offsets":[6,7]}})",
                                   "0123456"));
  const File file(path);
  ASSERT_TRUE(file.opened()) << perseid_last_error();
  ASSERT_EQ(file.count(), 2u);
  const char* name = nullptr;
  const DLTensor* tensor = nullptr;
  EXPECT_EQ(perseid_file_tensor(file.get(), 0, &name, nullptr), PERSEID_OK);
  EXPECT_STREQ(name, "a");
  EXPECT_EQ(perseid_file_tensor(file.get(), 0, &name, &tensor), PERSEID_IO_ERROR);
  EXPECT_TRUE(says("tensor 'a' has the type 'F8_E8M0'"));
  EXPECT_EQ(perseid_file_find(file.get(), "a", &tensor), PERSEID_IO_ERROR);
  ASSERT_EQ(perseid_file_find(file.get(), "b", &tensor), PERSEID_OK);
  EXPECT_EQ(elements_of(*tensor), "6");
  EXPECT_EQ(perseid_file_find(file.get(), "c", &tensor), PERSEID_IO_ERROR);
  EXPECT_TRUE(says("has no tensor 'c'; it holds 'a', 'b'"));
}

TEST(Safetensors, ErrorOfAMissingNameListsOnlySome) {
  const Folder folder;
  const std::string path = folder.path("a.safetensors");
  const Source source(kU8, {}, Order::kNone);
  std::vector<std::string> names(1000);
  std::vector<perseid_named_tensor> tensors;
  for (size_t i = 0; i < names.size(); ++i) {
    names[i] = "t" + std::to_string(i);
    tensors.push_back({names[i].c_str(), source.tensor()});
  }
  ASSERT_EQ(perseid_file_write(path.c_str(), tensors.data(), tensors.size(), nullptr, 0),
            PERSEID_OK);
  const File file(path);
  ASSERT_TRUE(file.opened());
  const DLTensor* tensor = nullptr;
  EXPECT_EQ(perseid_file_find(file.get(), std::string(5000, 'x').c_str(), &tensor),
            PERSEID_IO_ERROR);
  EXPECT_TRUE(says("and 984 more"));
  EXPECT_LT(std::string(perseid_last_error()).size(), 1000u);
}

struct HandMade {
  const char* what;
  std::string bytes;
  DLDataType dtype;
  std::vector<int64_t> shape;
  std::string elements;  // in row-major order
};

// Headers as other writers make them.
TEST(Npy, ReadsHandMadeHeaders) {
  const std::string data = "abcdefghijkl";
  const auto dict = [](const char* type, const char* order, const char* shape) {
    return std::string("{'descr': '") + type + "', 'fortran_order': " + order +
           ", 'shape': " + shape + ", }\n";
  };
  const std::vector<HandMade> cases = {
      {"version 1", npy(1, dict("|u1", "False", "(12,)"), data), kU8, {12}, data},
      {"version 2", npy(2, dict("<i2", "False", "(2, 3)"), data), kI16, {2, 3}, data},
      {"version 3", npy(3, dict("<f4", "False", "(3,)"), data), kF32, {3}, data},
      {"native order", npy(1, dict("=u4", "False", "(3,)"), data), kU32, {3}, data},
      {"no order", npy(1, dict("u4", "False", "(3,)"), data), kU32, {3}, data},
      {"big-endian bytes", npy(1, dict(">i1", "False", "(12,)"), data), kI8, {12}, data},
      {"comma after two", npy(1, dict("<f2", "False", "(3, 2,)"), data), kF16, {3, 2}, data},
      {"Python 2 long", npy(1, dict("|i1", "False", "(3L, 4L)"), data), kI8, {3, 4}, data},
      {"column-major", npy(1, dict("|u1", "True", "(3, 4)"), data), kU8, {3, 4}, "adgjbehkcfil"},
      {"column-major 3-D",
       npy(1, dict("<u2", "True", "(1, 2, 3)"), data),
       kU16,
       {1, 2, 3},
       "abefijcdghkl"},
      {"column-major empty", npy(1, dict("<u2", "True", "(3, 0)"), ""), kU16, {3, 0}, ""},
      {"no dimensions", npy(1, dict("<i8", "False", "()"), "12345678"), kI64, {}, "12345678"},
      {"large but empty",
       npy(1, dict("<i8", "False", "(1152921504606846975, 0)"), ""),
       kI64,
       {1152921504606846975, 0},
       ""},
      {"other quotes, order and spacing",
       npy(1, "{\"shape\":( 12 , ),\t\"fortran_order\":False , \"descr\":\"|b1\"}", data),
       kBool,
       {12},
       data},
      {"one byte of padding",
       npy(1, dict("<f8", "False", "(1,)") + " ", "12345678"),
       kF64,
       {1},
       "12345678"},
  };
  const Folder folder;
  for (const HandMade& test : cases) {
    SCOPED_TRACE(test.what);
    const File file(folder.write("a.npy", test.bytes));
    ASSERT_TRUE(file.opened()) << perseid_last_error();
    const DLTensor* tensor = nullptr;
    ASSERT_EQ(perseid_file_tensor(file.get(), 0, nullptr, &tensor), PERSEID_OK);
    EXPECT_TRUE(same_type(tensor->dtype, test.dtype));
    EXPECT_EQ(std::vector<int64_t>(tensor->shape, tensor->shape + tensor->ndim), test.shape);
    EXPECT_EQ(elements_of(*tensor), test.elements);
  }
}

TEST(Safetensors, ReadsHandMadeHeaders) {
  const Folder folder;
  // Any order of keys and tensors, white space, escapes, empty tensors, misaligned data.
  const File file(folder.write(
      "a.safetensors",
      safetensors(
          "{ \"b\\u00e9\\ud83c\\udf20\" : {\"shape\":[ 1 , 2 ],\r\n\t\"data_offsets\":[1,9],"
          "\"dtype\":\"F32\"},\"\":{\"data_offsets\":[9,9],\"dtype\":\"I64\",\"shape\":[0]}, "
          "\"a\":{\"dtype\":\"I8\",\"shape\":[],\"data_offsets\":[0,1]},"
          "\"__metadata__\":{\"a\\/\\b\":\"\\n\\\"\"} } \n",
          "a12345678")));
  ASSERT_TRUE(file.opened()) << perseid_last_error();
  ASSERT_EQ(file.count(), 3u);
  const char* name = nullptr;
  const DLTensor* tensor = nullptr;
  ASSERT_EQ(perseid_file_tensor(file.get(), 0, &name, &tensor), PERSEID_OK);
  EXPECT_STREQ(name, "b\u00e9\U0001F320");
  EXPECT_EQ(elements_of(*tensor), "12345678");
  ASSERT_EQ(perseid_file_find(file.get(), "a", &tensor), PERSEID_OK);
  EXPECT_EQ(tensor->ndim, 0);
  EXPECT_EQ(elements_of(*tensor), "a");
  ASSERT_EQ(perseid_file_find(file.get(), "", &tensor), PERSEID_OK);
  EXPECT_EQ(elements_of(*tensor), "");
  const char* value = nullptr;
  ASSERT_EQ(perseid_file_metadata(file.get(), "a/\b", &value), PERSEID_OK);
  EXPECT_STREQ(value, "\n\"");
}

// Sparse files: the offsets are real, the data is never touched but for its last byte.
TEST(Files, OffsetsBeyond32Bits) {
  const Folder folder;
  const int64_t size = int64_t{5} << 30;
  const std::string sizes = std::to_string(size);
  const std::string npy_path = folder.write(
      "a.npy", npy(1, "{'descr': '|u1', 'fortran_order': False, 'shape': (" + sizes + ",)}\n", ""));
  const std::string path = folder.write(
      "a.safetensors",
      safetensors(R"({"big":{"dtype":"U8","shape":[)" + sizes + R"(],"data_offsets":[0,)" + sizes +
                      R"(]},"last":{"dtype":"I64","shape":[1],"data_offsets":[)" + sizes + "," +
                      std::to_string(size + 8) + "]}}",
                  ""));
  if (!append_sparse(npy_path, size, "") || !append_sparse(path, size, "lastlast"))
    GTEST_SKIP() << "the file system takes no sparse file of 5 GiB";
  const File npy_file(npy_path), file(path);
  ASSERT_TRUE(npy_file.opened()) << perseid_last_error();
  ASSERT_TRUE(file.opened()) << perseid_last_error();
  const DLTensor *whole = nullptr, *last = nullptr;
  ASSERT_EQ(perseid_file_tensor(npy_file.get(), 0, nullptr, &whole), PERSEID_OK);
  EXPECT_EQ(whole->shape[0], size);
  EXPECT_EQ(static_cast<const char*>(whole->data)[size - 1], 0);
  ASSERT_EQ(perseid_file_find(file.get(), "last", &last), PERSEID_OK);
  EXPECT_EQ(elements_of(*last), "lastlast");
}

// More than the gathering buffer holds, in rows that do not divide it.
TEST(Files, WritesLargeStridedTensors) {
  const Folder folder;
  const std::string path = folder.path("a.npy");
  for (const Order order : {Order::kNone, Order::kColumnMajor, Order::kEverySecond}) {
    for (const DLDataType dtype : {kI8, kF16, kF32, kF64}) {
      const Source source(dtype, {3, 251, 577}, order);
      ASSERT_EQ(write_one(path, source.tensor()), PERSEID_OK) << perseid_last_error();
      const File file(path);
      const DLTensor* tensor = nullptr;
      ASSERT_TRUE(file.opened()) << perseid_last_error();
      ASSERT_EQ(perseid_file_tensor(file.get(), 0, nullptr, &tensor), PERSEID_OK);
      expect_same(*source.tensor(), *tensor);
    }
  }
}

TEST(Files, WritingReplacesTheNameAndLeavesTheMapping) {
  const Folder folder;
  const std::string path = folder.path("a.npy");
  const Source first(kF32, {100}, Order::kNone), second(kI64, {3}, Order::kNone);
  ASSERT_EQ(write_one(path, first.tensor()), PERSEID_OK);
  const File old_file(path);
  ASSERT_EQ(write_one(path, second.tensor()), PERSEID_OK);
  const File new_file(path);
  const DLTensor *old_tensor = nullptr, *new_tensor = nullptr;
  ASSERT_EQ(perseid_file_tensor(old_file.get(), 0, nullptr, &old_tensor), PERSEID_OK);
  ASSERT_EQ(perseid_file_tensor(new_file.get(), 0, nullptr, &new_tensor), PERSEID_OK);
  expect_same(*first.tensor(), *old_tensor);
  expect_same(*second.tensor(), *new_tensor);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"a.npy"});
  struct stat facts {};
  ASSERT_EQ(::stat(path.c_str(), &facts), 0);
  const mode_t mask = ::umask(0);
  ::umask(mask);
  EXPECT_EQ(facts.st_mode & 0777, 0666 & ~mask);
}

// A limit on the file size fails as a full disk does: in the middle of writing.
TEST(Files, FailedWriteLeavesTheOldFileAndNothingElse) {
  const Folder folder;
  const std::string path = folder.path("a.npy");
  const Source small(kF32, {10}, Order::kNone), large(kF32, {100000}, Order::kEverySecond);
  ASSERT_EQ(write_one(path, small.tensor()), PERSEID_OK);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  rlimit lower = limit;
  lower.rlim_cur = 300000;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &lower), 0);
  const perseid_status status = write_one(path, large.tensor());
  ::setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(status, PERSEID_IO_ERROR);
  EXPECT_TRUE(says("a.npy': cannot write "));
  EXPECT_TRUE(says(std::strerror(EFBIG)));
  EXPECT_EQ(folder.names(), std::vector<std::string>{"a.npy"});
  const File file(path);
  const DLTensor* tensor = nullptr;
  ASSERT_TRUE(file.opened()) << perseid_last_error();
  ASSERT_EQ(perseid_file_tensor(file.get(), 0, nullptr, &tensor), PERSEID_OK);
  expect_same(*small.tensor(), *tensor);
}

TEST(Files, OpeningWhatIsNoFile) {
  const Folder folder;
  const auto refused = [](const std::string& path, const char* sentence) {
    const File file(path);
    return !file.opened() && file.status() == PERSEID_IO_ERROR && says(sentence);
  };
  EXPECT_TRUE(refused(folder.path("absent.npy"), std::strerror(ENOENT)));
  EXPECT_TRUE(refused(folder.path(""), "expected a regular file, got a folder"));
  EXPECT_TRUE(refused("/dev/null", "expected a regular file, got a device, pipe or socket"));
  const std::string pipe = folder.path("pipe.npy");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_TRUE(refused(pipe, "expected a regular file, got a device, pipe or socket"));
  EXPECT_TRUE(refused(folder.write("empty.npy", ""), "got ''"));
  EXPECT_TRUE(refused(folder.write("empty.safetensors", ""), "got a file of 0 bytes"));
  EXPECT_TRUE(refused(folder.write("text.txt", "Dear reader,"), "got a length of"));
}

TEST(Files, NullArguments) {
  perseid_file_t file = nullptr;
  const DLTensor* tensor = nullptr;
  const char* text = nullptr;
  size_t count = 0;
  EXPECT_EQ(perseid_file_open(nullptr, &file), PERSEID_INVALID_ARGUMENT);
  EXPECT_EQ(perseid_file_open("a.npy", nullptr), PERSEID_INVALID_ARGUMENT);
  EXPECT_EQ(perseid_file_count(nullptr, &count), PERSEID_INVALID_ARGUMENT);
  EXPECT_EQ(perseid_file_tensor(nullptr, 0, &text, &tensor), PERSEID_INVALID_ARGUMENT);
  EXPECT_EQ(perseid_file_find(nullptr, "a", &tensor), PERSEID_INVALID_ARGUMENT);
  EXPECT_EQ(perseid_file_metadata(nullptr, "a", &text), PERSEID_INVALID_ARGUMENT);
  EXPECT_EQ(perseid_file_write(nullptr, nullptr, 0, nullptr, 0), PERSEID_INVALID_ARGUMENT);
  EXPECT_EQ(perseid_file_write("a.safetensors", nullptr, 1, nullptr, 0), PERSEID_INVALID_ARGUMENT);
  EXPECT_EQ(perseid_file_write("a.safetensors", nullptr, 0, nullptr, 1), PERSEID_INVALID_ARGUMENT);
  perseid_file_close(nullptr);
}

TEST(Files, RefusesToWrite) {
  const Folder folder;
  const std::string npy_path = folder.path("a.npy"), path = folder.path("a.safetensors");
  const Source source(kF32, {2, 3}, Order::kRowMajor), half(kBF16, {2}, Order::kNone);
  const auto refused = [&](const std::string& to, auto change, const char* sentence) {
    int64_t shape[2] = {2, 3}, strides[2] = {3, 1};
    DLTensor tensor = *source.tensor();
    tensor.shape = shape;
    tensor.strides = strides;
    change(&tensor);
    return write_one(to, &tensor) == PERSEID_INVALID_ARGUMENT && says(sentence);
  };
  const auto same = [](DLTensor*) {};
  EXPECT_EQ(write_one(npy_path, half.tensor()), PERSEID_INVALID_ARGUMENT);
  EXPECT_TRUE(says("npy has no bfloat16 type; write a .safetensors file, or convert to float32"));
  EXPECT_EQ(write_one(npy_path, nullptr), PERSEID_INVALID_ARGUMENT);
  EXPECT_TRUE(says("tensor 0 ('w') is a NULL pointer"));
  EXPECT_TRUE(refused(folder.path("a.bin"), same, "a name that ends in .npy or .safetensors"));
  EXPECT_TRUE(refused(
      path, [](DLTensor* t) { t->device.device_type = kDLCUDA; }, "got device type 2"));
  EXPECT_TRUE(refused(
      path,
      [](DLTensor* t) {
        t->dtype = {kDLComplex, 64, 1};
      },
      "type code 5 of 64 bits"));
  EXPECT_TRUE(refused(
      path, [](DLTensor* t) { t->dtype.lanes = 4; }, "and 4 lanes"));
  EXPECT_TRUE(refused(
      path, [](DLTensor* t) { t->dtype.bits = 24; }, "of 24 bits"));
  EXPECT_TRUE(refused(
      path, [](DLTensor* t) { t->ndim = -1; }, "got -1"));
  EXPECT_TRUE(refused(
      path, [](DLTensor* t) { t->ndim = 65; }, "got 65"));
  EXPECT_TRUE(refused(
      path, [](DLTensor* t) { t->shape = nullptr; }, "no shape"));
  EXPECT_TRUE(refused(
      path, [](DLTensor* t) { t->shape[1] = -3; }, "got [2, -3]"));
  EXPECT_TRUE(refused(
      path, [](DLTensor* t) { t->data = nullptr; }, "but 24 bytes"));
  EXPECT_TRUE(refused(
      path, [](DLTensor* t) { t->shape[0] = t->shape[1] = int64_t{1} << 32; },
      "has more than 2^63 - 1 bytes"));
  EXPECT_TRUE(refused(
      path, [](DLTensor* t) { t->strides[0] = INT64_MIN; }, "strides [-9223372036854775808, 1]"));
  EXPECT_TRUE(refused(
      path, [](DLTensor* t) { t->strides[1] = INT64_MAX / 8; }, "lead further than"));

  const perseid_named_tensor two[] = {{"a", source.tensor()}, {"a", source.tensor()}};
  const perseid_key_value metadata[] = {{"k", "1"}, {"k", "2"}, {nullptr, "3"}};
  const auto write = [](const std::string& to, auto* tensors, size_t count, auto* entries,
                        size_t entry_count) {
    return perseid_file_write(to.c_str(), tensors, count, entries, entry_count);
  };
  EXPECT_EQ(write(npy_path, two, 2, metadata, 0), PERSEID_INVALID_ARGUMENT);
  EXPECT_TRUE(says("npy takes one tensor and no metadata, got 2 tensors"));
  EXPECT_EQ(write(npy_path, two, 1, metadata, 1), PERSEID_INVALID_ARGUMENT);
  EXPECT_EQ(write(path, two, 2, metadata, 0), PERSEID_INVALID_ARGUMENT);
  EXPECT_TRUE(says("every tensor name only once, got 'a' twice"));
  EXPECT_EQ(write(path, two, 1, metadata, 2), PERSEID_INVALID_ARGUMENT);
  EXPECT_TRUE(says("every metadata key only once, got 'k' twice"));
  EXPECT_EQ(write(path, two, 1, metadata, 3), PERSEID_INVALID_ARGUMENT);
  for (const char* name : {"__metadata__", "\xff", "\xc0\x80", "\xed\xa0\x80"}) {
    const perseid_named_tensor named{name, source.tensor()};
    EXPECT_EQ(write(path, &named, 1, metadata, 0), PERSEID_INVALID_ARGUMENT) << name;
  }
  EXPECT_TRUE(folder.names().empty()) << "a refused write leaves nothing behind";

  EXPECT_EQ(write_one(folder.path("absent/a.npy"), source.tensor()), PERSEID_IO_ERROR);
  EXPECT_TRUE(says(std::strerror(ENOENT)));
  ASSERT_EQ(::mkdir(npy_path.c_str(), 0700), 0);
  EXPECT_EQ(write_one(npy_path, source.tensor()), PERSEID_IO_ERROR);
  EXPECT_TRUE(says("got a folder"));
  EXPECT_EQ(folder.names(), std::vector<std::string>{"a.npy"});
}

// Where a process has closed its standard streams, no file takes their numbers.
TEST(Files, DescriptorsStayAboveTheStandardStreams) {
  const Folder folder;
  const std::string path = folder.write("a", "");
  const pid_t child = ::fork();
  if (child == 0) {
    for (int stream = 0; stream <= 2; ++stream) ::close(stream);
    const int descriptor = perseid::internal::open_file(path.c_str(), O_RDONLY);
    bool right = descriptor > 2 && ::fcntl(descriptor, F_GETFD) == FD_CLOEXEC;
    for (int stream = 0; stream <= 2; ++stream) right = right && ::fcntl(stream, F_GETFD) < 0;
    ::_exit(right ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Files, FolderWithoutPermission) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const Folder folder;
  const std::string locked = folder.path("locked");
  ASSERT_EQ(::mkdir(locked.c_str(), 0500), 0);
  const Source source(kF32, {2}, Order::kNone);
  EXPECT_EQ(write_one(locked + "/a.npy", source.tensor()), PERSEID_IO_ERROR);
  EXPECT_TRUE(says(std::strerror(EACCES)));
}

}  // namespace
