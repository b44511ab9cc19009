// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Trainer's save and load: weights and moments as tensors, the rest as metadata.
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "trainer.hpp"

namespace gpt {
namespace {

constexpr const char* kKind = "perseid-gpt-1";

// Every number of a recipe with its name; `visit` sees them one after another.
template <class Visit>
void for_each_field(Recipe& recipe, const Visit& visit) {
  visit("layers", recipe.model.layers);
  visit("width", recipe.model.width);
  visit("heads", recipe.model.heads);
  visit("context", recipe.model.context);
  visit("batch", recipe.model.batch);
  visit("dropout", recipe.model.dropout);
  visit("learning_rate", recipe.learning_rate);
  visit("warm_up", recipe.warm_up);
  visit("steps", recipe.steps);
  visit("seed", recipe.seed);
}

// The shortest text that reads back as the same number.
template <class Number>
std::string print(Number value) {
  char text[64];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

template <class Number>
void parse(const perseid::File& file, const std::string& path, const std::string& key,
           Number& value) {
  const std::string text = file.metadata(key).value_or("");
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw perseid::Error(PERSEID_IO_ERROR, "'" + path + "' is no checkpoint of this program: its " +
                                               key + " is '" + text + "', not a number");
  }
}

template <class R>
void read(const perseid::File& file, const std::string& name, const Matrix& matrix, R* to) {
  const perseid::Tensor tensor = file[name];
  if (tensor.dtype() != perseid::dtype_of<R> || tensor.ndim() != 2 ||
      tensor.size(0) != matrix.rows || tensor.size(1) != matrix.columns) {
    throw perseid::Error(PERSEID_IO_ERROR, "the checkpoint's tensor '" + name +
                                               "' has another shape or type than its options say");
  }
  std::memcpy(to + matrix.offset, tensor.data(), static_cast<size_t>(matrix.size()) * sizeof(R));
}

template <class T>
constexpr const char* kName = "f32";
template <>
constexpr const char* kName<BFloat16> = "bf16";
template <>
constexpr const char* kName<double> = "f64";

}  // namespace

template <class T>
void Trainer<T>::save(const std::string& path) const {
  std::vector<perseid::NamedTensor> tensors;
  const std::pair<const char*, const Real<T>*> arrays[] = {{"", weights_.real().read()},
                                                           {"first_moment.", optimizer_.first()},
                                                           {"second_moment.", optimizer_.second()}};
  for (const auto& [prefix, values] : arrays) {
    for (const auto& matrix : cut_.all()) {
      tensors.emplace_back(prefix + matrix.name,
                           perseid::Tensor(values + matrix.offset, {matrix.rows, matrix.columns}));
    }
  }
  std::vector<perseid::KeyValue> metadata = {{"kind", kKind},
                                             {"dtype", kName<T>},
                                             {"steps_done", print(steps_done_)},
                                             {"text_bytes", print(data_.size())},
                                             {"text_fingerprint", print(data_.fingerprint())}};
  Recipe recipe = recipe_;
  for_each_field(recipe,
                 [&](const char* name, auto& value) { metadata.emplace_back(name, print(value)); });
  perseid::write_file(path, tensors, metadata);
}

template <class T>
void Trainer<T>::try_save(const std::string& path) const {
  namespace fs = std::filesystem;
  const auto refuse = [&](perseid_status status, const std::string& why) {
    throw perseid::Error(status, "the checkpoint '" + path + "' cannot be written: " + why);
  };
  if (!path.ends_with(".safetensors")) {
    refuse(PERSEID_INVALID_ARGUMENT, "expected a name that ends in .safetensors");
  }
  std::error_code ignored;
  const fs::path target = fs::weakly_canonical(fs::absolute(path, ignored), ignored);
  const fs::file_status there = fs::status(target, ignored);
  if (fs::exists(there) && !fs::is_regular_file(there)) {
    refuse(PERSEID_IO_ERROR, "expected a file or nothing, got a folder or a device");
  }
  // A file of that size, which has no name by the time that it gets its room.
  std::string trial = (target.parent_path() / ".perseid-gpt-XXXXXX").string();
  const int file = mkstemp(trial.data());
  if (file < 0) refuse(PERSEID_IO_ERROR, std::generic_category().message(errno));
  unlink(trial.c_str());
  constexpr int64_t kHeader = 1 << 18;
  const int64_t bytes = 3 * cut_.size * static_cast<int64_t>(sizeof(Real<T>)) + kHeader;
  const int error = posix_fallocate(file, 0, bytes);
  close(file);
  // Not every file system can tell.
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    refuse(PERSEID_IO_ERROR, "it takes " + std::to_string(bytes / 1000000 + 1) +
                                 " MB: " + std::generic_category().message(error));
  }
}

template <class T>
void Trainer<T>::load(const std::string& path) {
  const perseid::File file(path);
  uint64_t fingerprint = 0;
  parse(file, path, "text_fingerprint", fingerprint);
  if (fingerprint != data_.fingerprint()) {
    throw perseid::Error(PERSEID_INVALID_ARGUMENT,
                         "'" + path + "' was trained on another text of " +
                             file.metadata("text_bytes").value_or("unknown") +
                             " bytes; resume it with the text that it began with");
  }
  Real<T>* weights = weights_.real().write();
  for (const auto& matrix : cut_.all()) {
    read(file, matrix.name, matrix, weights);
    read(file, "first_moment." + matrix.name, matrix, optimizer_.first());
    read(file, "second_moment." + matrix.name, matrix, optimizer_.second());
  }
  parse(file, path, "steps_done", steps_done_);
  take_weights();
}

SavedRun read_saved_run(const std::string& path) {
  const perseid::File file(path);
  if (file.metadata("kind") != kKind) {
    throw perseid::Error(PERSEID_IO_ERROR, "'" + path + "' is no checkpoint of this program");
  }
  SavedRun run;
  run.dtype = file.metadata("dtype").value_or("");
  for_each_field(run.recipe,
                 [&](const char* name, auto& value) { parse(file, path, name, value); });
  check(run.recipe);
  return run;
}

template void Trainer<float>::save(const std::string&) const;
template void Trainer<BFloat16>::save(const std::string&) const;
template void Trainer<double>::save(const std::string&) const;
template void Trainer<float>::try_save(const std::string&) const;
template void Trainer<BFloat16>::try_save(const std::string&) const;
template void Trainer<double>::try_save(const std::string&) const;
template void Trainer<float>::load(const std::string&);
template void Trainer<BFloat16>::load(const std::string&);
template void Trainer<double>::load(const std::string&);

}  // namespace gpt
