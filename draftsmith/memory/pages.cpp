// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/memory/pages.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>
#include <utility>

namespace draftsmith::memory {
namespace {

constexpr int kProtection = PROT_READ | PROT_WRITE;
constexpr int kKind = MAP_PRIVATE | MAP_ANONYMOUS;

/// Null if there is none.
char* map_room(size_t bytes) {
  void* const mapped = ::mmap(nullptr, bytes, kProtection, kKind, -1, 0);
  return mapped == MAP_FAILED ? nullptr : static_cast<char*>(mapped);
}

/// Large ones from a border of huge pages on. The C library would keep the gaps that such an alignment
/// leaves, and what is freed between other blocks.
char* map_new_pages(size_t bytes) {
  if (bytes < kHugePage) return map_room(bytes);
  char* const room = map_room(bytes + kHugePage);
  if (room == nullptr) return nullptr;
  const size_t gap = -reinterpret_cast<uintptr_t>(room) % kHugePage;
  if (gap > 0) ::munmap(room, gap);
  ::munmap(room + gap + bytes, kHugePage - gap);
  ::madvise(room + gap, bytes, MADV_HUGEPAGE);
  return room + gap;
}

/// One at a time, because a call moves what was mapped by one. False: the system would not, and may
/// have taken away what was there.
bool move_huge_page(char* from, char* to) {
  return ::mremap(from, kHugePage, kHugePage, MREMAP_MAYMOVE | MREMAP_FIXED, to) != MAP_FAILED;
}

}  // namespace

void unmap_pages(Pages pages) {
  if (pages.bytes > 0) ::munmap(pages.begin, pages.bytes);
}

Pages map_pages(size_t bytes, std::vector<Pages> spare) {
  const auto unmap_spare = [&] {
    for (const Pages& pages : std::exchange(spare, {}))
      unmap_pages(pages);
  };
  char* begin = map_new_pages(bytes);
  if (begin == nullptr) {
    unmap_spare();
    begin = map_new_pages(bytes);
  }
  if (begin == nullptr) throw std::bad_alloc();
  size_t filled = 0;
  for (Pages& pages : spare) {
    while (pages.bytes >= kHugePage && filled + kHugePage <= bytes) {
      if (!move_huge_page(pages.begin, begin + filled)) {
        unmap_spare();
        void* const again =
            ::mmap(begin + filled, bytes - filled, kProtection, kKind | MAP_FIXED, -1, 0);
        if (again != MAP_FAILED) return {begin, bytes};
        unmap_pages({begin, bytes});
        throw std::bad_alloc();
      }
      pages.begin += kHugePage;
      pages.bytes -= kHugePage;
      filled += kHugePage;
    }
  }
  unmap_spare();
  return {begin, bytes};
}

}  // namespace draftsmith::memory
