// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "agreement.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <map>
#include <new>
#include <nlohmann/json.hpp>
#include <numeric>

#include "files.hpp"

namespace perseid::cli {
namespace {

// Where a file is, of all hosts.
std::string place_of(const std::string& path) {
  char host[HOST_NAME_MAX + 1] = "";
  gethostname(host, sizeof host - 1);
  std::error_code failure;
  const std::filesystem::path whole = std::filesystem::weakly_canonical(path, failure);
  return fmt::format("{}:{}", host, failure ? path : whole.string());
}

// Without leaving a file behind: files are written under a temporary name in their folder.
void check_writable(const char* flag, const std::string& reference, const std::string& path) {
  std::error_code failure;
  std::filesystem::path target = path;
  if (std::filesystem::is_symlink(target, failure))
    target = std::filesystem::weakly_canonical(target, failure);
  const std::filesystem::path folder =
      target.has_parent_path() ? target.parent_path() : std::filesystem::path(".");
  if (std::filesystem::is_directory(target, failure)) {
    errno = EISDIR;
  } else if (access(folder.c_str(), W_OK | X_OK) == 0) {
    return;
  }
  throw Error(PERSEID_IO_ERROR,
              fmt::format("{} {} cannot be written: {}", flag, reference, std::strerror(errno)));
}

// Bytes of all ranks, one after the other. Groups gather numbers: a byte is one.
std::string gather(const Group& group, const std::string& mine, std::chrono::nanoseconds deadline,
                   std::vector<size_t>* lengths) {
  const auto length = static_cast<double>(mine.size());
  std::vector<double> all_lengths(static_cast<size_t>(group.size()));
  group.all_gather(Tensor(&length, f64, {1}), Tensor(all_lengths.data(), f64, {group.size()}),
                   deadline);
  lengths->assign(all_lengths.begin(), all_lengths.end());
  const size_t total = std::accumulate(lengths->begin(), lengths->end(), size_t{0});
  std::vector<float> sent, all(total);
  for (const char each : mine) sent.push_back(static_cast<float>(static_cast<unsigned char>(each)));
  group.all_gather(Tensor(sent.data(), f32, {std::ssize(sent)}),
                   Tensor(all.data(), f32, {std::ssize(all)}), deadline);
  std::string text;
  for (const float each : all) text += static_cast<char>(static_cast<unsigned char>(each));
  return text;
}

nlohmann::json to_json(const RankTerms& terms) {
  nlohmann::json outputs = nlohmann::json::array();
  for (const RankTerms::Output& each : terms.outputs)
    outputs.push_back({each.flag, each.place, each.same_on_all});
  return {{"facts", terms.facts}, {"outputs", outputs}, {"sizes", terms.sizes}};
}

// Ends with the failure of the first rank that has one.
void raise_failures(const std::vector<nlohmann::json>& all) {
  const auto failed = std::find_if(all.begin(), all.end(), [](const nlohmann::json& each) {
    return each["status"] != static_cast<int>(PERSEID_OK);
  });
  if (failed == all.end()) return;
  const auto status = (*failed)["status"].get<int>();
  const auto sentence = (*failed)["sentence"].get<std::string>();
  const bool everywhere = std::all_of(all.begin(), all.end(), [&](const nlohmann::json& each) {
    return each["sentence"] == sentence;
  });
  throw Error(
      static_cast<perseid_status>(status),
      everywhere ? sentence : fmt::format("on rank {}: {}", failed - all.begin(), sentence));
}

void compare_facts(const std::vector<nlohmann::json>& all) {
  using Facts = std::vector<std::pair<std::string, std::string>>;
  const auto first = all[0]["terms"]["facts"].get<Facts>();
  for (size_t rank = 1; rank < all.size(); ++rank) {
    const auto facts = all[rank]["terms"]["facts"].get<Facts>();
    for (size_t i = 0; i < std::max(facts.size(), first.size()); ++i) {
      if (i >= facts.size() || i >= first.size() || facts[i].first != first[i].first)
        throw Error(PERSEID_INVALID_ARGUMENT,
                    fmt::format("rank {} computes something else than rank 0; start all ranks with "
                                "the same operation and flags",
                                rank));
      if (facts[i].second == first[i].second) continue;
      constexpr size_t kLongest = 200;  // of what a sentence repeats
      if (std::max(facts[i].second.size(), first[i].second.size()) > kLongest)
        throw Error(PERSEID_INVALID_ARGUMENT,
                    fmt::format("{} other values on rank {} than on rank 0; give the same on all "
                                "ranks",
                                facts[i].first, rank));
      throw Error(PERSEID_INVALID_ARGUMENT,
                  fmt::format("{} {} on rank {} and {} on rank 0; give the same on all ranks",
                              facts[i].first, facts[i].second, rank, first[i].second));
    }
  }
}

// The flags that `rank` leaves to a rank before it.
std::vector<std::string> compare_outputs(const std::vector<nlohmann::json>& all, size_t rank) {
  struct Writer {
    size_t rank;
    std::string flag;
    bool same_on_all;
  };
  std::map<std::string, Writer> writers;  // of each place
  std::vector<std::string> left;
  for (size_t each = 0; each < all.size(); ++each) {
    for (const nlohmann::json& output : all[each]["terms"]["outputs"]) {
      const Writer here{each, output[0].get<std::string>(), output[2].get<bool>()};
      const auto place = output[1].get<std::string>();
      const auto [found, first] = writers.emplace(place, here);
      const Writer& writer = found->second;
      if (first || writer.rank == each) continue;
      if (writer.flag != here.flag || !writer.same_on_all || !here.same_on_all)
        throw Error(PERSEID_INVALID_ARGUMENT,
                    fmt::format("{} of rank {} and {} of rank {} both write {}; put {{rank}} into "
                                "the name",
                                writer.flag, writer.rank, here.flag, each,
                                place.substr(place.find(':') + 1)));
      if (each == rank) left.push_back(here.flag);
    }
  }
  return left;
}

}  // namespace

void RankTerms::same(std::string subject, std::string value) {
  facts.emplace_back(std::move(subject), std::move(value));
}

void RankTerms::same_kind(const char* flag, const Tensor& tensor) {
  if (!tensor.present()) return;
  same(fmt::format("{} has", flag), fmt::format("{} dimensions", tensor.ndim()));
  same(fmt::format("{} is", flag), harness::name_of(tensor.dtype()));
}

void RankTerms::output(const char* flag, const std::string& reference, bool same_on_all) {
  if (reference.empty()) return;
  const std::string path = parse_reference(flag, reference).path;
  check_writable(flag, reference, path);
  outputs.push_back({flag, place_of(path), same_on_all});
}

void RankTerms::report(const std::string& path) {
  if (path.empty()) return;
  check_writable("--report", path, path);
  outputs.push_back({"--report", place_of(path), false});
}

int64_t Agreed::total(size_t index) const {
  return std::accumulate(
      sizes.begin(), sizes.end(), int64_t{0},
      [&](int64_t sum, const harness::Shape& each) { return sum + each[index]; });
}

std::string Agreed::own(const char* flag, const std::string& reference) const {
  return std::find(left_to_others.begin(), left_to_others.end(), flag) == left_to_others.end()
             ? reference
             : "";
}

Agreed agree(const Group& group, std::chrono::nanoseconds deadline,
             const std::function<void(RankTerms*)>& prepare) {
  RankTerms terms;
  nlohmann::json mine = {{"status", static_cast<int>(PERSEID_OK)}, {"sentence", ""}};
  try {
    prepare(&terms);
  } catch (const Error& error) {
    mine = {{"status", static_cast<int>(error.status())}, {"sentence", error.what()}};
  } catch (const std::bad_alloc&) {
    mine = {{"status", static_cast<int>(PERSEID_OUT_OF_MEMORY)},
            {"sentence", "out of memory; use a smaller problem"}};
  } catch (const std::exception& error) {
    mine = {{"status", static_cast<int>(PERSEID_DEVICE_ERROR)}, {"sentence", error.what()}};
  }
  mine["terms"] = to_json(terms);
  std::vector<size_t> lengths;
  const std::string text =
      gather(group, mine.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), deadline,
             &lengths);
  std::vector<nlohmann::json> all;
  size_t begin = 0;
  for (const size_t length : lengths) {
    all.push_back(nlohmann::json::parse(text.substr(begin, length)));
    begin += length;
  }
  raise_failures(all);
  compare_facts(all);
  Agreed agreed{{}, compare_outputs(all, static_cast<size_t>(group.rank()))};
  for (const nlohmann::json& each : all)
    agreed.sizes.push_back(each["terms"]["sizes"].get<harness::Shape>());
  return agreed;
}

}  // namespace perseid::cli
