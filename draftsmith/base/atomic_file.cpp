// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/base/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "draftsmith/base/error.h"

namespace draftsmith {
namespace fs = std::filesystem;

void fail_write(const fs::path& path, const std::string& reason) {
  throw DeviceError(
      {.what = "file",
       .expected = "to write it",
       .got = reason,
       .where = path.string(),
       .hint = "freeing space or another output folder"});
}

std::string read_file(const fs::path& path) {
  const auto fail = [&](const std::string& reason) {
    throw DataError(
        {.what = "file", .expected = "a readable file", .got = reason, .where = path.string()});
  };
  std::error_code error;
  const auto status = fs::status(path, error);
  if (fs::is_directory(status)) fail(std::strerror(EISDIR));
  if (fs::exists(status) && !fs::is_regular_file(status)) fail("no regular file");  // a pipe blocks
  errno = 0;
  std::ifstream stream(path, std::ios::binary);
  if (!stream) fail(std::strerror(errno));
  // In one piece: a string that grows as it is filled takes twice the bytes.
  const uintmax_t size = fs::file_size(path, error);
  std::string bytes(error ? 0 : size, '\0');
  stream.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (stream.bad()) fail("an error while reading");
  bytes.resize(static_cast<size_t>(stream.gcount()));
  return bytes;
}

void flush_to_disk(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail_write(path, std::strerror(errno));
  const int result = ::fsync(descriptor);
  const int reason = errno;
  ::close(descriptor);
  if (result != 0) fail_write(path, std::strerror(reason));
}

void write_file_atomically(const fs::path& path, std::string_view bytes) {
  fs::path aside = path;
  aside += ".partial";
  {
    std::ofstream stream(aside, std::ios::binary | std::ios::trunc);
    stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    stream.close();
    if (!stream) fail_write(aside, std::strerror(errno));
  }
  flush_to_disk(aside);
  std::error_code error;
  fs::rename(aside, path, error);
  if (error) fail_write(path, error.message());
  flush_to_disk(path.has_parent_path() ? path.parent_path() : fs::path("."));
}

void make_writable_folder(const fs::path& path, std::string_view setting) {
  std::error_code error;
  fs::create_directories(path, error);
  if (!error && !fs::is_directory(path)) error = std::make_error_code(std::errc::not_a_directory);
  const fs::path probe = path / ".writable";
  if (!error && !std::ofstream(probe)) error = std::error_code(errno, std::generic_category());
  if (error) {
    throw ConfigError(
        {.what = std::string(setting),
         .expected = "a folder that can be written",
         .got = error.message(),
         .where = path.string(),
         .hint = "another folder"});
  }
  fs::remove(probe, error);
}

StagedFolder::StagedFolder(fs::path final_path) : final_(std::move(final_path)) {
  if (!final_.has_filename()) final_ = final_.parent_path();  // "runs/one/"
  staging_ = final_.parent_path() / ("." + final_.filename().string() + ".partial");
  std::error_code error;
  fs::remove_all(staging_, error);
  fs::create_directories(staging_, error);
  if (error) fail_write(staging_, error.message());
}

StagedFolder::~StagedFolder() {
  std::error_code error;
  if (!is_published_) fs::remove_all(staging_, error);
}

void StagedFolder::publish() {
  for (const auto& entry : fs::recursive_directory_iterator(staging_))
    flush_to_disk(entry.path());
  flush_to_disk(staging_);
  std::error_code error;
  // An old folder changes places with the new one in one step and is removed afterwards.
  if (fs::exists(final_) &&
      ::renameat2(AT_FDCWD, staging_.c_str(), AT_FDCWD, final_.c_str(), RENAME_EXCHANGE) == 0) {
    fs::remove_all(staging_, error);
  } else {
    fs::remove_all(final_, error);  // where the file system cannot exchange
    fs::rename(staging_, final_, error);
    if (error) fail_write(final_, error.message());
  }
  is_published_ = true;
  flush_to_disk(final_.has_parent_path() ? final_.parent_path() : fs::path("."));
}

}  // namespace draftsmith
