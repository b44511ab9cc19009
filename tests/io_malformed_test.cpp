// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Malformed tensor files: each is refused with IO_ERROR and a sentence that holds the offending
// number or text.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "io_test_tools.hpp"
#include "perseid/perseid.h"

namespace {

using namespace perseid_test;

struct Malformed {
  std::string bytes;
  const char* sentence;  // a part of what is to be said
};

void expect_refused(const std::string& name, const std::vector<Malformed>& cases) {
  const Folder folder;
  for (const Malformed& test : cases) {
    SCOPED_TRACE(testing::PrintToString(test.bytes.substr(0, 300)));
    const std::string path = folder.write(name, test.bytes);
    const File file(path);
    EXPECT_EQ(file.status(), PERSEID_IO_ERROR);
    EXPECT_EQ(file.get(), nullptr);
    EXPECT_TRUE(says(test.sentence));
    EXPECT_TRUE(says("file '" + path + "': "));
    EXPECT_LT(std::string(perseid_last_error()).size(), 500 + path.size());
  }
}

std::string dict(const std::string& type, const std::string& order, const std::string& shape) {
  return "{'descr': " + type + ", 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
}

TEST(NpyMalformed, Preamble) {
  const std::string good = npy(1, dict("'|u1'", "False", "(3,)"), "abc");
  expect_refused(
      "a.npy",
      {{"", "got ''"},
       {good.substr(0, 3), "got '?NU'"},
       {"\x93NUMPX" + good.substr(6), "got '?NUMPX'"},
       {good.substr(0, 6), "got a file of 6 bytes"},
       {good.substr(0, 7), "got a file of 7 bytes"},
       {good.substr(0, 9), "bytes 8 to 9, got a file of 9 bytes"},
       {npy(2, "", "").substr(0, 11), "bytes 8 to 11, got a file of 11 bytes"},
       {npy(0, "{}", ""), "expected version 1.0, 2.0 or 3.0, got 0.0"},
       {npy(4, "{}", ""), "got 4.0"},
       {std::string("\x93NUMPY\x01\x07", 8) + good.substr(8), "got 1.7"},
       {good.substr(0, 20), "said to take 58 bytes, but 10 bytes follow"},
       {std::string("\x93NUMPY\x02\0\xff\xff\xff\xff{}", 14), "got a length of 4294967295"},
       {std::string("\x93NUMPY\x03\0\x01\0\x10\0{}", 14), "got a length of 1048577"},
       {std::string("\x93NUMPY\x03\0\0\0\x10\0{}", 14), "take 1048576 bytes, but 2 bytes follow"}});
}

TEST(NpyMalformed, Dictionary) {
  const auto file = [](const std::string& header) { return npy(1, header, "abc"); };
  const std::string good = dict("'|u1'", "False", "(3,)");
  expect_refused(
      "a.npy",
      {{file(""), "byte 0 of the header: expected '{', got its end"},
       {file("[]"), "expected '{', got '['"},
       {file("{}"), "lacks the key 'descr'"},
       {file("{'descr': '|u1'}"), "lacks the key 'fortran_order'"},
       {file("{'descr': '|u1', 'fortran_order': True}"), "lacks the key 'shape'"},
       {file("{,}"), "byte 1 of the header: expected a string, got ','"},
       {file("{'descr' '|u1'}"), "byte 9 of the header: expected ':'"},
       {file("{'descr': '|u1' 'shape': ()}"), "byte 16 of the header: expected ',' or '}'"},
       {file("{'descr': '|u1',, 'shape': ()}"), "byte 16 of the header: expected a string"},
       {file("{'descr': '|u1"), "byte 10 of the header: a string begins here that does not end"},
       {file("{'descr': '|u1\"}"), "a string begins here that does not end"},
       {file("{'descr': 'a\\'"), "expected a string without escapes"},
       {file(std::string("{'descr': 'a\0'}", 15)), "a control character within a string"},
       {file("{'descr': 'a\xff'}"), "not valid UTF-8"},
       {file("{'descr': 3}"), "expected a string, got '3'"},
       {file("{'descr': '|u1', 'descr': '|u1'}"), "the key 'descr' appears twice"},
       {file("{'shape': (1,), 'shape': (1,)}"), "the key 'shape' appears twice"},
       {file("{'order': 'C'}"),
        "expected the keys 'descr', 'fortran_order' and 'shape', got 'order'"},
       {file("{3: 'C'}"), "expected a string, got '3'"},
       {file(dict("'|u1'", "0", "(3,)")), "expected True or False, got '0'"},
       {file(dict("'|u1'", "false", "(3,)")), "expected True or False, got 'false'"},
       {file(dict("'|u1'", "Falsehood", "(3,)")), "expected ',' or '}', got 'hood'"},
       {file(good + "x"), "expected nothing more, got 'x'"},
       {file(good + std::string(1, '\0')), "expected nothing more, got '?'"},
       {file(good.substr(0, good.size() - 2)), "got its end"},
       {file(good + std::string(1000, '{')), "expected nothing more, got '{'"}});
}

TEST(NpyMalformed, Type) {
  const auto file = [](const std::string& type) {
    return npy(1, dict(type, "False", "(1,)"), "abc");
  };
  expect_refused(
      "a.npy",
      {{file("'>f4'"), "expected little-endian elements, got '>f4'"},
       {file("'>i2'"), "convert the array with astype('<i2')"},
       {file("'<V2'"), "got '<V2', two bytes without a meaning (NumPy writes bfloat16 so"},
       {file("'|V2'"), "store bfloat16 in a .safetensors file, or as float32"},
       {file("'|O'"), "got '|O', pickled Python objects"},
       {file("'O8'"), "never loaded"},
       {file("''"), "got ''"},
       {file("'<'"), "got '<'"},
       {file("'<c8'"), "got '<c8'"},
       {file("'<f16'"), "got '<f16'"},
       {file("'<f1'"), "got '<f1'"},
       {file("'<f3'"), "got '<f3'"},
       {file("'<i0'"), "got '<i0'"},
       {file("'<i16'"), "got '<i16'"},
       {file("'|b2'"), "got '|b2'"},
       {file("'|S1'"), "got '|S1'"},
       {file("'<U3'"), "got '<U3'"},
       {file("'<M8[ns]'"), "got '<M8[ns]'"},
       {file("'<<f4'"), "got '<<f4'"},
       {file("'<f4 '"), "got '<f4 '"},
       {file("'" + std::string(5000, 'x') + "'"), "xxx...'"},
       {file("[('a', '<f4'), ('b', '<i4')]"), "the type is a structure of several fields"}});
}

TEST(NpyMalformed, Shape) {
  const auto file = [](const std::string& shape, const char* type = "'<f4'") {
    return npy(1, dict(type, "False", shape), "abcd");
  };
  std::string many = "(";
  for (int i = 0; i < 65; ++i) many += "1, ";
  expect_refused(
      "a.npy", {{file("3"), "expected '(', got '3'"},
                {file("[3]"), "expected '(', got '['"},
                {file("(3)"), "expected ',', got ')'"},
                {file("(,)"), "expected a whole number from 0 to 9223372036854775807, got ','"},
                {file("(3,,)"), "got ','"},
                {file("(3 4)"), "got '4'"},
                {file("(-1,)"), "got '-1'"},
                {file("(+1,)"), "got '+1'"},
                {file("(1.0,)"), "got '1.0'"},
                {file("(1e3,)"), "got '1e3'"},
                {file("(1_000,)"), "got '1_000'"},
                {file("(0x10,)"), "expected ',', got 'x10'"},
                {file("(007,)"), "got '007'"},
                {file("(None,)"), "got 'None'"},
                {file("('3',)"), "got '''"},
                {file("(9223372036854775808,)"), "got '9223372036854775808'"},
                {file("(99999999999999999999999999999999,)"), "got '999999999999999999999999'"},
                {file("(18446744073709551617,)"), "got '18446744073709551617'"},
                {file(many + ")"), "expected at most 64 dimensions"},
                {file("((3,),)"), "got '('"},
                {file("(2,)"),
                 "f32 [2] takes 8 bytes, but 4 bytes follow the header; the file is cut short"},
                {file("(0,)"), "f32 [0] takes 0 bytes, but 4 bytes follow"},
                {file("(1,)", "'|u1'"),
                 "uint8 [1] takes 1 bytes, but 4 bytes follow the header; the file is "
                 "damaged or holds several arrays"},
                {file("(4294967296, 4294967296)"),
                 "f32 [4294967296, 4294967296] has more than 2^63 - 1 bytes"},
                {file("(9223372036854775807,)"), "f32 [9223372036854775807] has more than"},
                {file("(9223372036854775807,)", "'|u1'"), "takes 9223372036854775807 bytes, but 4"},
                {file("(4611686018427387904, 4, 0)"), "has more than 2^63 - 1 bytes"},
                {file("(4294967296, 536870911)"), "takes 9223372019674906624 bytes"}});
}

TEST(SafetensorsMalformed, Length) {
  expect_refused(
      "a.safetensors",
      {{"", "got a file of 0 bytes"},
       {"1234567", "got a file of 7 bytes"},
       {little_endian(UINT64_MAX, 8) + "{}", "got a length of 18446744073709551615"},
       {little_endian(uint64_t{1} << 63, 8) + "{}", "got a length of 9223372036854775808"},
       {little_endian(100'000'001, 8) + "{}", "got a length of 100000001"},
       {little_endian(100'000'000, 8) + "{}", "take 100000000 bytes, but 2 bytes follow"},
       {little_endian(3, 8) + "{}", "take 3 bytes, but 2 bytes follow"},
       {little_endian(0, 8), "byte 0 of the header: expected the header to begin with '{'"},
       {little_endian(1, 8) + "{}", "expected a string, got its end"}});
}

TEST(SafetensorsMalformed, Json) {
  const auto file = [](const std::string& header) { return safetensors(header, ""); };
  const auto string = [&](const std::string& text) {
    return file("{\"__metadata__\":{\"k\":\"" + text + "\"}}");
  };
  expect_refused(
      "a.safetensors",
      {{file(" {}"), "expected the header to begin with '{'"},
       {file("[]"), "expected the header to begin with '{'"},
       {file("{}{}"), "byte 2 of the header: expected nothing more, got '{'"},
       {file("{} x"), "byte 3 of the header: expected nothing more, got 'x'"},
       {file(std::string("{}\0", 3)), "expected nothing more, got '?'"},
       {file("{,}"), "expected a string, got ','"},
       {file("{\"a\"}"), "expected ':', got '}'"},
       {file("{\"a\":1}"), "expected '{', got '1'"},
       {file("{\"a\":null}"), "expected '{', got 'null'"},
       {file("{'a':{}}"), "expected a string, got '''"},
       {file("{a:{}}"), "expected a string, got 'a'"},
       {file("{\"__metadata__\":{},}"), "expected another item after ',', got '}'"},
       {file("{\"__metadata__\":{}"), "expected ',' or '}', got its end"},
       {file("{\"__metadata__\":[]}"), "expected '{', got '['"},
       {file("{\"__metadata__\":null}"), "expected '{', got 'null'"},
       {file("{\"__metadata__\":{\"k\":1}}"), "expected a string, got '1'"},
       {file("{\"__metadata__\":{\"k\":{}}}"), "expected a string, got '{'"},
       {file("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}"), "the metadata key 'k' appears twice"},
       {file("{\"__metadata__\":{},\"__metadata__\":{}}"), "'__metadata__' appears twice"},
       {file("{\"\\u005f_metadata__\":{},\"__metadata__\":{}}"), "'__metadata__' appears twice"},
       {file("{\"a"), "byte 1 of the header: a string begins here that does not end"},
       {string("\\x41"), "expected an escape of JSON, got '\\x41"},
       {string("\\"), "a string begins here that does not end"},
       {string("\\u12"), "expected an escape of JSON, got '\\u12"},
       {string("\\u12g4"), "expected an escape of JSON, got '\\u12g4'"},
       {string("\\u+123"), "expected an escape of JSON, got '\\u+123'"},
       {string("\\u0000"), "expected text without NUL characters"},
       {string("\\ud800"), "expected an escape of JSON"},
       {string("\\ud800\\ud800"), "first half of a surrogate pair without a second"},
       {string("\\ud800\\u0041"), "first half of a surrogate pair without a second"},
       {string("\\udc00"), "second half of a surrogate pair without a first"},
       {string("\n"), "a control character within a string"},
       {string(std::string(1, '\0')), "a control character within a string"},
       {string("\xff"), "not valid UTF-8"},
       {string("\xc3"), "not valid UTF-8"},
       {string("\xc0\xaf"), "not valid UTF-8"},
       {string("\xe0\x80\x80"), "not valid UTF-8"},
       {string("\xed\xa0\x80"), "not valid UTF-8"},
       {string("\xf0\x80\x80\x80"), "not valid UTF-8"},
       {string("\xf4\x90\x80\x80"), "not valid UTF-8"},
       {string("\xf8\x88\x80\x80\x80"), "not valid UTF-8"},
       {file("{\"a\":" + std::string(100000, '[')), "expected '{', got '['"},
       {file(std::string(100000, '{')), "expected a string, got '{'"}});
}

TEST(SafetensorsMalformed, Tensor) {
  const auto entry = [](const std::string& body) {
    return safetensors("{\"w\":{" + body + "}}", "12345678");
  };
  const auto shape = [&](const std::string& text, const std::string& dtype = "U8") {
    return entry("\"dtype\":\"" + dtype + "\",\"shape\":" + text + ",\"data_offsets\":[0,8]");
  };
  const auto offsets = [&](const std::string& text) {
    return entry("\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":" + text);
  };
  std::string many = "[1";
  for (int i = 0; i < 64; ++i) many += ",1";
  expect_refused(
      "a.safetensors",
      {{entry(""), "tensor 'w' lacks the key 'dtype'"},
       {entry("\"dtype\":\"U8\""), "lacks the key 'shape'"},
       {entry("\"dtype\":\"U8\",\"shape\":[8]"), "lacks the key 'data_offsets'"},
       {entry("\"dtype\":\"U8\",\"dtype\":\"U8\""), "tensor 'w' has the key 'dtype' twice"},
       {entry("\"shape\":[8],\"shape\":[8]"), "has the key 'shape' twice"},
       {entry("\"data_offsets\":[0,8],\"data_offsets\":[0,8]"), "the key 'data_offsets' twice"},
       {entry("\"type\":\"U8\""), "got 'type'"},
       {entry("\"dtype\":8"), "expected a string, got '8'"},
       {shape("8"), "expected '[', got '8'"},
       {shape("[8,]"), "expected another item after ',', got ']'"},
       {shape("[,8]"), "got ','"},
       {shape("[-8]"), "got '-8'"},
       {shape("[-0]"), "got '-0'"},
       {shape("[8.0]"), "got '8.0'"},
       {shape("[8e0]"), "got '8e0'"},
       {shape("[08]"), "got '08'"},
       {shape("[8L]"), "got 'L'"},
       {shape("[\"8\"]"), "got '\"'"},
       {shape("[[8]]"), "got '['"},
       {shape("[9223372036854775808]"), "got '9223372036854775808'"},
       {shape("[18446744073709551624]"), "got '18446744073709551624'"},
       {shape(many + "]"), "expected at most 64 dimensions"},
       {shape("[7]"), "tensor 'w' of 'U8' [7] takes 7 bytes, but its data_offsets [0, 8) hold 8"},
       {shape("[]"), "takes 1 bytes, but its data_offsets [0, 8) hold 8"},
       {shape("[0]"), "takes 0 bytes"},
       {shape("[3]", "F32"), "'F32' [3] takes 12 bytes, but its data_offsets [0, 8) hold 8"},
       {shape("[4294967296,4294967296]"), "[4294967296, 4294967296] has more than 2^63 - 1 bytes"},
       {shape("[2305843009213693952]", "F64"),
        "[2305843009213693952] has more than 2^63 - 1 bytes"},
       {shape("[9223372036854775807,2,0]", "F8_E4M3"), "has more than 2^63 - 1 bytes"},
       {offsets("[0]"), "expected ',', got ']'"},
       {offsets("[0,8,8]"), "expected ']', got ','"},
       {offsets("[]"), "got ']'"},
       {offsets("{}"), "expected '[', got '{'"},
       {offsets("[8,0]"), "has data_offsets [8, 0), expected two rising ones of at most 8"},
       {offsets("[0,9]"), "has data_offsets [0, 9), expected two rising ones of at most 8"},
       {offsets("[0,9223372036854775807]"), "[0, 9223372036854775807), expected two rising"},
       {offsets("[9223372036854775807,9223372036854775807]"), "of at most 8"},
       {offsets("[0,18446744073709551615]"), "got '18446744073709551615'"},
       {offsets("[-8,0]"), "got '-8'"}});
}

TEST(SafetensorsMalformed, Cover) {
  const auto file = [](std::vector<std::pair<int, int>> ranges, const std::string& data) {
    std::string header = "{";
    for (size_t i = 0; i < ranges.size(); ++i) {
      const auto [begin, end] = ranges[i];
      header += std::string(i == 0 ? "" : ",") + "\"t" + std::to_string(i) +
                "\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(end - begin) +
                "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
    }
    return safetensors(header + "}", data);
  };
  const std::string data = "12345678";
  const std::string tensor = "\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}";
  expect_refused(
      "a.safetensors",
      {{file({}, data), "end at byte 0 of the buffer, but 8 bytes follow the header"},
       {file({{0, 7}}, data), "end at byte 7 of the buffer, but 8 bytes follow the header"},
       {file({{1, 8}}, data), "tensor 't0' has data_offsets [1, 8), expected them to begin at 0"},
       {file({{0, 3}, {4, 8}}, data), "'t1' has data_offsets [4, 8), expected them to begin at 3"},
       {file({{0, 3}, {4, 8}}, data), "bytes in between belong to none"},
       {file({{0, 5}, {4, 8}}, data), "'t1' has data_offsets [4, 8), expected them to begin at 5"},
       {file({{4, 8}, {0, 5}}, data), "'t0' has data_offsets [4, 8), expected them to begin at 5"},
       {file({{0, 8}, {0, 8}}, data), "two tensors overlap"},
       {file({{0, 8}, {2, 2}}, data), "[2, 2), expected them to begin at 8"},
       {safetensors("{\"w\":{" + tensor + ",\"w\":{" + tensor + "}", data),
        "the tensor name 'w' appears twice"},
       {safetensors("{\"w\":{" + tensor + ",\"\\u0077\":{" + tensor + "}", data),
        "the tensor name 'w' appears twice"}});
}

}  // namespace
