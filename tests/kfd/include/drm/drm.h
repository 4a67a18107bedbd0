/* The interfaces of the render node and of KFD that Debian 12's kernel headers lack: <linux/kfd_ioctl.h> includes
 * <drm/drm.h>, which Debian's linux-libc-dev leaves out. Only what the emulated driver plays is here.
 *
 * Sources: Linux 6.18, include/uapi/drm/drm.h, include/uapi/drm/amdgpu_drm.h, include/uapi/linux/kfd_ioctl.h; for the
 * two IPC ioctls AMD's own driver (ROCm/ROCK-Kernel-Driver, include/uapi/linux/kfd_ioctl.h), for Linux has none. */
#pragma once

#include <asm/ioctl.h>
#include <linux/types.h>

/* Render node: numbers below 0x40 are common to all drivers, amdgpu's own begin there. */
enum {
    DRM_VERSION = 0x00,
    DRM_GET_CLIENT = 0x05,
    DRM_GEM_CLOSE = 0x09,
    DRM_GET_CAP = 0x0c,
    DRM_PRIME_HANDLE_TO_FD = 0x2d,
    DRM_PRIME_FD_TO_HANDLE = 0x2e,
    AMDGPU_GEM_CREATE = 0x40,
    AMDGPU_GEM_MMAP = 0x41,
    AMDGPU_INFO = 0x45,
    AMDGPU_GEM_METADATA = 0x46,
    AMDGPU_GEM_VA = 0x48,
    AMDGPU_GEM_OP = 0x50,
};

struct drm_version {
    int major, minor, patchlevel;
    size_t name_length;
    char *name;
    size_t date_length;
    char *date;
    size_t description_length;
    char *description;
};

struct drm_client {
    int index, is_authenticated;
    unsigned long pid, uid, magic, ioctls;
};

struct drm_gem_close {
    __u32 handle, pad;
};

struct drm_get_cap {
    __u64 capability, value;
};

struct drm_prime_handle {
    __u32 handle, flags;
    __s32 fd;
};

enum { DOMAIN_GTT = 2, DOMAIN_VRAM = 4 };

struct gem_create_request {
    __u64 size, alignment, domains, flags;
};

union gem_create {
    struct gem_create_request request;
    __u32 handle;
};

union gem_mmap {
    __u32 handle;
    __u64 offset;
};

enum { VA_MAP = 1, VA_UNMAP = 2, VA_CLEAR = 3, VA_REPLACE = 4 };

struct gem_va {
    __u32 handle, pad, operation, flags;
    __u64 address, offset, size;
};

enum { METADATA_SET = 1, METADATA_GET = 2 };

struct gem_metadata {
    __u32 handle, operation;
    struct {
        __u64 flags, tiling;
        __u32 size, words[64];
    } data;
};

enum { GEM_OP_GET_CREATE_INFO = 0 };

struct gem_op {
    __u32 handle, operation;
    __u64 value;
};

enum {
    INFO_ACCELERATION_WORKS = 0x00,
    INFO_TIMESTAMP = 0x05,
    INFO_VRAM_USAGE = 0x10,
    INFO_VRAM_GTT = 0x14,
    INFO_REGISTERS = 0x15,
    INFO_DEVICE = 0x16,
    INFO_MEMORY = 0x19,
};

struct amdgpu_info {
    __u64 answer; /* where it goes */
    __u32 size, query;
};

struct heap_info {
    __u64 total, usable, used, largest;
};

struct memory_info {
    struct heap_info vram, visible_vram, gtt;
};

/* KFD, newer than Linux 6.1. */
enum {
    KFD_EXPORT_DMABUF = 0x24,
    KFD_RUNTIME_ENABLE = 0x25,
    KFD_IPC_IMPORT = 0x80,
    KFD_IPC_EXPORT = 0x81,
};

struct kfd_export_dmabuf {
    __u64 handle;
    __u32 flags, fd;
};

struct kfd_ipc_import {
    __u64 handle, address, mmap_offset;
    __u32 share[4], gpu_id, flags;
};

struct kfd_ipc_export {
    __u64 handle;
    __u32 share[4], gpu_id, flags;
};
