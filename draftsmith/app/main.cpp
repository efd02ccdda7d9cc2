// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <exception>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include <c10/util/Exception.h>

#include "draftsmith/app/command_line.h"
#include "draftsmith/base/error.h"
#include "draftsmith/base/log.h"
#include "draftsmith/memory/device_memory.h"
#include "draftsmith/memory/host_allocator.h"

#include "build_info_values.h"

namespace {

/// OpenMP's threads wait for each other by spinning. With its default count two programs that
/// share a machine's cores slow each other down ten times and more. libgomp reads the variable
/// once, when it is loaded, so the program starts itself again with it; entries of .preinit_array
/// run before any library is initialised, which makes that cheap.
void choose_spin_count(int /*argc*/, char** argv, char** environment) {
  static char setting[] = "GOMP_SPINCOUNT=2000";
  size_t count = 0;
  for (; environment[count] != nullptr; ++count) {
    for (const char* name : {"GOMP_SPINCOUNT=", "OMP_WAIT_POLICY="})
      if (std::strncmp(environment[count], name, std::strlen(name)) == 0) return;
  }
  std::vector<char*> changed(environment, environment + count);
  changed.push_back(setting);
  changed.push_back(nullptr);
  ::execve("/proc/self/exe", argv, changed.data());  // returns only if it failed: then spin
}

__attribute__((
    section(".preinit_array"),
    used)) void (*const kChooseSpinCount)(int, char**, char**) = &choose_spin_count;

constexpr int kExitData = 3;
constexpr int kExitDevice = 5;
constexpr int kExitBug = 70;

}  // namespace

int main(int argc, char** argv) {
  draftsmith::memory::install_host_allocator();
  draftsmith::memory::use_expandable_segments();
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond the limit is an error that names it
  try {
    return draftsmith::app::run_command_line(argc, argv, {DS_COMMIT, DS_IS_CHANGED});
  } catch (const draftsmith::Error& error) {
    draftsmith::log_line(error.what());
    return error.exit_code();
  } catch (const std::filesystem::filesystem_error& error) {  // a folder of others, a name too long
    draftsmith::log_line(draftsmith::format_error(
        {.what = "path",
         .expected = "one that can be looked at",
         .got = error.code().message(),
         .where = error.path1().string()}));
    return kExitData;
  } catch (const c10::OutOfMemoryError& error) {
    draftsmith::log_line(error.what_without_backtrace());
    return kExitDevice;
  } catch (const std::bad_alloc&) {
    draftsmith::log_line(
        "memory: expected enough for this run, got none left. Try smaller batches.");
    return kExitDevice;
  } catch (const c10::Error& error) {
    draftsmith::log_line(std::string("a bug in draftsmith: ") + error.what_without_backtrace());
    return kExitBug;
  } catch (const std::exception& error) {
    draftsmith::log_line(std::string("a bug in draftsmith: ") + error.what());
    return kExitBug;
  }
}
