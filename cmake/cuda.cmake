# SPDX-License-Identifier: Apache-2.0
# nvcc and the CUDA libraries of a build with DS_CUDA. A toolkit elsewhere is used with
# -D DS_CUDA_ROOT=FOLDER, and libtorch then finds its libraries beside itself.

if(NOT DS_CUDA_ROOT)
  file(GLOB ds_wheel_root "${PROJECT_SOURCE_DIR}/.venv-cuda/lib/python3*/site-packages/nvidia/cu13")
  set(DS_CUDA_ROOT "${ds_wheel_root}")
endif()
if(NOT EXISTS "${DS_CUDA_ROOT}/bin/nvcc")
  message(FATAL_ERROR "CUDA: expected bin/nvcc in '${DS_CUDA_ROOT}', got none. Try "
                      "tools/test --cuda, which installs it, or -D DS_CUDA_ROOT=/usr/local/cuda.")
endif()

# Machine code for A100, H100 and H200, B200, and RTX 50; code for what comes later is made from
# that of the last.
set(CMAKE_CUDA_ARCHITECTURES "80-real;90-real;100-real;120" CACHE STRING "GPUs to compile for")
set(CMAKE_CUDA_COMPILER "${DS_CUDA_ROOT}/bin/nvcc")
set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # that of libtorch is linked, by its name
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")  # which CMake 3.25 does not know of nvcc

# libtorch_cuda with what it loads: registered when it is loaded, so never dropped as unused.
file(GLOB ds_cuda_runtime "${DS_CUDA_ROOT}/lib*/libcudart.so.13")
list(GET ds_cuda_runtime 0 ds_cuda_runtime)
file(GLOB ds_cuda_folders "${DS_CUDA_ROOT}/lib" "${DS_CUDA_ROOT}/../*/lib")
add_library(ds_cuda INTERFACE)
target_include_directories(ds_cuda SYSTEM INTERFACE "${DS_CUDA_ROOT}/include")
foreach(folder IN LISTS ds_cuda_folders)
  target_link_options(ds_cuda INTERFACE "LINKER:-rpath,${folder}" "LINKER:-rpath-link,${folder}")
endforeach()
target_link_libraries(ds_cuda INTERFACE
  -Wl,--no-as-needed
  "${ds_site_packages}/torch/lib/libtorch_cuda.so"
  "${ds_site_packages}/torch/lib/libc10_cuda.so"
  -Wl,--as-needed
  "${ds_cuda_runtime}")
