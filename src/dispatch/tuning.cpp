// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "dispatch/tuning.hpp"

#include <utility>

#include "base/header_reader.hpp"
#include "base/json.hpp"
#include "base/log.hpp"
#include "cuda/runtime/hash.hpp"
#include "cuda/runtime/trusted_file.hpp"

namespace perseid::internal::dispatch {
namespace {

constexpr int64_t kFormat = 1;
constexpr uint64_t kMostBytes = 4 << 20;

bool read_key(HeaderReader& reader, std::string_view name) {
  std::string key;
  return reader.read_string(&key) &&
         (key == name || reader.fail("expected the key " + quoted(name))) && reader.expect(':');
}

bool read_text(HeaderReader& reader, std::string_view key, std::string* value) {
  return read_key(reader, key) && reader.read_string(value);
}

std::string file_name(std::string_view device, std::string_view source) {
  const uint64_t hash = cuda::Hash().add(device).add(source).value();
  std::string digits(16, '0');
  uint64_t rest = hash;
  for (size_t i = 16; i-- > 0; rest >>= 4) digits[i] = "0123456789abcdef"[rest & 15];
  return "tuning-" + digits + ".json";
}

}  // namespace

bool read_tuning(std::string_view json, std::string_view device, std::string_view source,
                 TunedProblems* problems) {
  HeaderReader reader(Dialect::kJson, json);
  int64_t format = 0;
  std::string text;
  reader.expect('{');
  if (!read_key(reader, "perseid_tuning") || !reader.read_integer(&format) || format != kFormat)
    return false;
  for (const auto& [key, expected] : {std::pair{"device", device}, {"source", source}})
    if (!reader.expect(',') || !read_text(reader, key, &text) || text != expected) return false;
  reader.expect(',');
  if (!read_key(reader, "problems") || !reader.expect('[')) return false;
  TunedProblems found;
  for (size_t count = 0; reader.next_item(']', &count);) {
    Tuned tuned;
    reader.expect('{');
    if (!read_text(reader, "problem", &text) || !reader.expect(',') ||
        !read_text(reader, "configuration", &tuned.configuration) || !reader.expect(',') ||
        !read_key(reader, "nanoseconds") || !reader.read_integer(&tuned.nanoseconds) ||
        !reader.expect('}'))
      return false;
    found[text] = std::move(tuned);
  }
  reader.expect('}');
  if (!reader.expect_end()) return false;
  *problems = std::move(found);
  return true;
}

std::string write_tuning(const TunedProblems& problems, std::string_view device,
                         std::string_view source) {
  JsonWriter json;
  json.begin_object().field("perseid_tuning", kFormat);
  json.field("device", device).field("source", source).key("problems").begin_array();
  for (const auto& [problem, tuned] : problems)
    json.begin_object()
        .field("problem", problem)
        .field("configuration", tuned.configuration)
        .field("nanoseconds", tuned.nanoseconds)
        .end_object();
  json.end_array().end_object();
  return json.text() + "\n";
}

Tuning::Tuning(const std::string& folder, std::string device, std::string source)
    : folder_(folder),
      device_(std::move(device)),
      source_(std::move(source)),
      name_(file_name(device_, source_)) {
  read();
}

void Tuning::read() {
  if (folder_.empty()) return;
  const auto warn = [&](std::string_view why) {
    log(PERSEID_LOG_WARNING,
        concatenate(path(), " is not used: ", why, "; remove it, and run perseid tune again"));
  };
  Descriptor folder, file;
  // The cache of modules warns of a folder that is not to be trusted.
  if (!cuda::open_trusted_folder(folder_, &folder).ok() || !folder.opened()) return;
  if (Status status = cuda::open_trusted_file(folder, name_, &file); !status.ok())
    return warn(status.sentence());
  if (!file.opened()) return;
  const uint64_t bytes = cuda::size_of(file);
  std::string text;
  TunedProblems problems;
  if (bytes > kMostBytes || !cuda::read_at(file, 0, bytes, &text) ||
      !read_tuning(text, device_, source_, &problems))
    return warn("it is no tuning of this device and version");
  problems_ = std::move(problems);
}

std::string Tuning::find(const std::string& problem) const {
  const std::lock_guard lock(mutex_);
  const auto found = problems_.find(problem);
  return found == problems_.end() ? "" : found->second.configuration;
}

Status Tuning::keep(const std::string& problem, const Tuned& tuned) {
  const std::lock_guard lock(mutex_);
  read();
  problems_[problem] = tuned;
  Descriptor folder;
  if (!folder_.empty()) {
    cuda::make_private_folder(folder_);
    if (Status status = cuda::open_trusted_folder(folder_, &folder); !status.ok())
      return Status::error(PERSEID_IO_ERROR, "the tuning cache ", folder_,
                           " is not used: ", status.sentence(),
                           "; set PERSEID_CACHE_DIR to a folder of your own");
  }
  if (folder.opened() &&
      cuda::replace_file(folder, name_, write_tuning(problems_, device_, source_)))
    return {};
  return Status::error(PERSEID_IO_ERROR, "the tuning cache ", path(),
                       " cannot be written; set PERSEID_CACHE_DIR to a folder that can be written "
                       "and has room");
}

}  // namespace perseid::internal::dispatch
