// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/memory/pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <new>
#include <vector>

namespace draftsmith::memory {
namespace {

/// With `mark` as the first byte of every page.
Pages make_marked(size_t bytes, char mark) {
  const Pages pages = map_pages(bytes);
  for (size_t at = 0; at < bytes; at += kPage)
    pages.begin[at] = mark;
  return pages;
}

std::vector<char> read_marks(Pages pages, size_t step) {
  std::vector<char> marks;
  for (size_t at = 0; at < pages.bytes; at += step)
    marks.push_back(pages.begin[at]);
  return marks;
}

bool is_mapped(const char* page) {
  unsigned char is_resident = 0;
  return ::mincore(const_cast<char*>(page), kPage, &is_resident) == 0 || errno != ENOMEM;
}

TEST(Pages, LargeOnesBeginAtABorderOfHugePages) {
  for (const size_t bytes : {kHugePage, 3 * kHugePage + kPage}) {
    const Pages pages = map_pages(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pages.begin) % kHugePage, 0U);
    EXPECT_EQ(pages.bytes, bytes);
    const auto marks = read_marks(pages, kPage);
    EXPECT_EQ(std::count(marks.begin(), marks.end(), '\0'), std::ssize(marks));
    unmap_pages(pages);
    EXPECT_FALSE(is_mapped(pages.begin));
  }
}

TEST(Pages, MovesHugePagesOfSpareOnesAndGivesTheRestBack) {
  // Of the first two huge pages are taken, of the second, itself made of others, one.
  const Pages first = make_marked(2 * kHugePage + kPage, 'a');
  const Pages second = map_pages(2 * kHugePage, {make_marked(2 * kHugePage, 'b')});
  const Pages small = make_marked(kPage, 'c');
  const Pages joined = map_pages(3 * kHugePage + kPage, {small, first, second});
  EXPECT_EQ(read_marks(joined, kHugePage), (std::vector<char>{'a', 'a', 'b', '\0'}));
  EXPECT_EQ(joined.begin[3 * kHugePage - kPage], 'b');
  for (const Pages& spare : {small, first, second})
    for (size_t at = 0; at < spare.bytes; at += kPage)
      EXPECT_FALSE(is_mapped(spare.begin + at)) << at;
  // A part of what was joined can be given back, and the rest be moved on.
  unmap_pages({joined.begin + 2 * kHugePage, kHugePage + kPage});
  const Pages last = map_pages(4 * kHugePage, {{joined.begin, 2 * kHugePage}});
  EXPECT_EQ(read_marks(last, kHugePage), (std::vector<char>{'a', 'a', '\0', '\0'}));
  unmap_pages(last);
}

TEST(Pages, NothingIsLeftOfSpareOnesWhenThereIsNoMemory) {
  const Pages spare = make_marked(kHugePage, 'a');
  EXPECT_THROW(map_pages(size_t{1} << 47, {spare}), std::bad_alloc);  // more than there are addresses
  EXPECT_FALSE(is_mapped(spare.begin));
}

}  // namespace
}  // namespace draftsmith::memory
