// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/formats/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "draftsmith/base/error.h"

namespace draftsmith::formats {

std::shared_ptr<const MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const auto fail = [&](const std::string& reason) {
    throw DataError(
        {.what = "file", .expected = "a readable file", .got = reason, .where = path.string()});
  };
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe waits
  if (descriptor < 0) fail(std::strerror(errno));
  struct stat status {};
  void* address = MAP_FAILED;
  std::string reason;
  if (::fstat(descriptor, &status) != 0) {
    reason = std::strerror(errno);
  } else if (!S_ISREG(status.st_mode) || status.st_size == 0) {
    reason = S_ISREG(status.st_mode) ? "an empty file" : "no regular file";
  } else {
    address =
        ::mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (address == MAP_FAILED) reason = std::strerror(errno);
  }
  ::close(descriptor);
  if (address == MAP_FAILED) fail(reason);
  return std::shared_ptr<const MappedFile>(
      new MappedFile(static_cast<const std::byte*>(address), static_cast<size_t>(status.st_size)));
}

void MappedFile::forget(const std::byte* begin, size_t bytes) const {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = (reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page;
  const auto end = (reinterpret_cast<uintptr_t>(begin) + bytes) / page * page;
  if (end > first) ::madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
}

MappedFile::~MappedFile() { ::munmap(const_cast<std::byte*>(data_), size_bytes_); }

}  // namespace draftsmith::formats
