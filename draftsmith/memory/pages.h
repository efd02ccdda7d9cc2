// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

namespace draftsmith::memory {

constexpr size_t kPage = size_t{4} << 10;
constexpr size_t kHugePage = size_t{2} << 20;

/// A range of the process's own memory, mapped from the system: `begin` and `bytes` are multiples of
/// kPage, `begin` of kHugePage if it holds that much.
struct Pages {
  char* begin = nullptr;
  size_t bytes = 0;
};

/// Gives `pages` back to the system.
void unmap_pages(Pages pages);

/// `bytes` (a multiple of kPage) of new memory. The huge pages of `spare` are moved there with what is
/// in them, because the system would clear new ones, which takes longer than most operations on a
/// tensor do; the rest of `spare` goes back to it.
/// Errors: std::bad_alloc; `spare` is gone then too.
Pages map_pages(size_t bytes, std::vector<Pages> spare = {});

}  // namespace draftsmith::memory
