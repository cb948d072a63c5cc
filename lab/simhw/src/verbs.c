// SPDX-License-Identifier: GPL-2.0
/*
 * Verbs for the kernel's own users (MAD layer, IPoIB): queues complete, data goes nowhere.
 *
 * A send is complete at once; of all that is sent only questions to the subnet administrator are
 * answered (mad.c). Receives wait until their queue pair is put into the error state. Programs may
 * open a device and ask about it; queues and memory they cannot have.
 */
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/workqueue.h>
#include <rdma/ib_mad.h>
#include <rdma/ib_verbs.h>
#include <rdma/uverbs_ioctl.h>
#include <uapi/rdma/mlx5-abi.h>
#include "simhw.h"

struct sim_ucontext {
	struct ib_ucontext ib;
	struct page *page;	/* stands for the doorbell pages that libmlx5 maps */
};

struct sim_ah {
	struct ib_ah ib;
	struct rdma_ah_attr attr;
};

struct sim_pd {
	struct ib_pd ib;
};

struct sim_cq {
	struct ib_cq ib;
	spinlock_t lock;
	struct ib_wc *ring;
	unsigned int size, head, count;
	bool armed;
	struct work_struct work;
};

#define MAX_SGE	2	/* of a receive that can be filled: header and the rest of a MAD */

struct sim_recv {
	struct ib_cqe *cqe;	/* or the ID: a union in the work request too */
	struct ib_sge sge[MAX_SGE];
	int num_sge;
};

struct sim_qp {
	struct ib_qp ib;
	spinlock_t lock;
	enum ib_qp_state state;
	bool signal_all;
	struct ib_qp_init_attr init;
	struct sim_recv *ring;
	unsigned int size, head, count;
};

static struct sim_cq *to_cq(struct ib_cq *cq)
{
	return container_of(cq, struct sim_cq, ib);
}

static struct sim_qp *to_qp(struct ib_qp *qp)
{
	return container_of(qp, struct sim_qp, ib);
}

/* ---- completion queues ---- */

static void cq_work(struct work_struct *work)
{
	struct sim_cq *cq = container_of(work, struct sim_cq, work);

	cq->ib.comp_handler(&cq->ib, cq->ib.cq_context);
}

static void complete_wc(struct ib_cq *ibcq, const struct ib_wc *wc)
{
	struct sim_cq *cq = to_cq(ibcq);
	unsigned long flags;

	spin_lock_irqsave(&cq->lock, flags);
	if (!WARN_ON_ONCE(cq->count == cq->size)) {
		cq->ring[(cq->head + cq->count) % cq->size] = *wc;
		cq->count++;
	}
	if (cq->armed && ibcq->comp_handler) {
		cq->armed = false;
		schedule_work(&cq->work);
	}
	spin_unlock_irqrestore(&cq->lock, flags);
}

static int create_cq(struct ib_cq *ibcq, const struct ib_cq_init_attr *attr,
		     struct uverbs_attr_bundle *attrs)
{
	struct sim_cq *cq = to_cq(ibcq);

	if (attrs)
		return -EOPNOTSUPP;
	cq->size = attr->cqe + 1;
	cq->ring = kvcalloc(cq->size, sizeof(*cq->ring), GFP_KERNEL);
	if (!cq->ring)
		return -ENOMEM;
	spin_lock_init(&cq->lock);
	INIT_WORK(&cq->work, cq_work);
	ibcq->cqe = attr->cqe;
	return 0;
}

static int destroy_cq(struct ib_cq *ibcq, struct ib_udata *udata)
{
	struct sim_cq *cq = to_cq(ibcq);

	cancel_work_sync(&cq->work);
	kvfree(cq->ring);
	return 0;
}

static int poll_cq(struct ib_cq *ibcq, int num, struct ib_wc *wc)
{
	struct sim_cq *cq = to_cq(ibcq);
	unsigned long flags;
	int n;

	spin_lock_irqsave(&cq->lock, flags);
	for (n = 0; n < num && cq->count; n++) {
		wc[n] = cq->ring[cq->head];
		cq->head = (cq->head + 1) % cq->size;
		cq->count--;
	}
	spin_unlock_irqrestore(&cq->lock, flags);
	return n;
}

static int req_notify_cq(struct ib_cq *ibcq, enum ib_cq_notify_flags notify)
{
	struct sim_cq *cq = to_cq(ibcq);
	unsigned long flags;
	int missed;

	spin_lock_irqsave(&cq->lock, flags);
	cq->armed = true;
	missed = (notify & IB_CQ_REPORT_MISSED_EVENTS) && cq->count;
	spin_unlock_irqrestore(&cq->lock, flags);
	return missed;
}

/* ---- queue pairs ---- */

static int create_qp(struct ib_qp *ibqp, struct ib_qp_init_attr *attr, struct ib_udata *udata)
{
	struct sim_qp *qp = to_qp(ibqp);
	static atomic_t next = ATOMIC_INIT(0x40);

	if (udata)
		return -EOPNOTSUPP;
	qp->size = max(attr->cap.max_recv_wr, 1U) + 1;	/* one more for draining */
	qp->ring = kvcalloc(qp->size, sizeof(*qp->ring), GFP_KERNEL);
	if (!qp->ring)
		return -ENOMEM;
	spin_lock_init(&qp->lock);
	qp->state = IB_QPS_RESET;
	qp->signal_all = attr->sq_sig_type == IB_SIGNAL_ALL_WR;
	qp->init = *attr;
	if (attr->qp_type == IB_QPT_SMI)
		ibqp->qp_num = 0;
	else if (attr->qp_type == IB_QPT_GSI)
		ibqp->qp_num = 1;
	else
		ibqp->qp_num = atomic_inc_return(&next) & 0xffffff;
	return 0;
}

/* With qp->lock. False: none was posted. */
static bool pop_recv(struct sim_qp *qp, struct sim_recv *recv)
{
	if (!qp->count)
		return false;
	*recv = qp->ring[qp->head];
	qp->head = (qp->head + 1) % qp->size;
	qp->count--;
	return true;
}

static void complete_recv(struct sim_qp *qp, const struct sim_recv *recv, struct ib_wc *wc)
{
	wc->wr_cqe = recv->cqe;
	wc->qp = &qp->ib;
	wc->opcode = IB_WC_RECV;
	complete_wc(qp->ib.recv_cq, wc);
}

static void flush_recvs(struct sim_qp *qp)
{
	unsigned long flags;
	struct sim_recv recv;

	spin_lock_irqsave(&qp->lock, flags);
	while (pop_recv(qp, &recv)) {
		struct ib_wc wc = { .status = IB_WC_WR_FLUSH_ERR };

		complete_recv(qp, &recv, &wc);
	}
	spin_unlock_irqrestore(&qp->lock, flags);
}

static int modify_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask, struct ib_udata *udata)
{
	struct sim_qp *qp = to_qp(ibqp);

	if (mask & IB_QP_STATE) {
		WRITE_ONCE(qp->state, attr->qp_state);
		if (attr->qp_state == IB_QPS_ERR)
			flush_recvs(qp);
		else if (attr->qp_state == IB_QPS_RESET)
			qp->count = 0;
	}
	return 0;
}

static int query_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask,
		    struct ib_qp_init_attr *init)
{
	struct sim_qp *qp = to_qp(ibqp);

	memset(attr, 0, sizeof(*attr));
	attr->qp_state = READ_ONCE(qp->state);
	attr->cur_qp_state = attr->qp_state;
	attr->cap = qp->init.cap;
	attr->port_num = 1;
	*init = qp->init;
	return 0;
}

static int destroy_qp(struct ib_qp *ibqp, struct ib_udata *udata)
{
	kvfree(to_qp(ibqp)->ring);
	return 0;
}

static int post_recv(struct ib_qp *ibqp, const struct ib_recv_wr *wr,
		     const struct ib_recv_wr **bad)
{
	struct sim_qp *qp = to_qp(ibqp);
	unsigned long flags;
	int ret = 0;

	spin_lock_irqsave(&qp->lock, flags);
	for (; wr; wr = wr->next) {
		struct sim_recv *recv;

		if (qp->count == qp->size) {
			*bad = wr;
			ret = -ENOMEM;
			break;
		}
		recv = &qp->ring[(qp->head + qp->count) % qp->size];
		recv->cqe = wr->wr_cqe;
		recv->num_sge = min(wr->num_sge, MAX_SGE);
		memcpy(recv->sge, wr->sg_list, recv->num_sge * sizeof(*recv->sge));
		qp->count++;
	}
	spin_unlock_irqrestore(&qp->lock, flags);
	if (qp->state == IB_QPS_ERR)
		flush_recvs(qp);
	return ret;
}

/*
 * A MAD to the subnet administrator: put the answer where the next receive wants it. The device has
 * no DMA device, so that addresses in work requests are the kernel's own.
 */
static void answer_sa(struct sim_qp *qp, const struct ib_send_wr *wr)
{
	struct simhw_ibdev *sib = to_simhw(qp->ib.device);
	struct ib_wc wc = {
		.status = IB_WC_SUCCESS,
		.byte_len = sizeof(struct ib_grh) + IB_MGMT_MAD_SIZE,
		.src_qp = 1,
		.slid = SIMHW_SM_LID,
		.port_num = 1,
	};
	struct {
		struct ib_grh grh;	/* room for one, which is not there */
		u8 mad[IB_MGMT_MAD_SIZE];
	} __packed *reply;
	u8 request[IB_MGMT_MAD_SIZE] = {};
	struct sim_recv recv;
	unsigned long flags;
	size_t at = 0;
	int i;

	for (i = 0; i < wr->num_sge && at < sizeof(request); i++) {
		size_t n = min_t(size_t, wr->sg_list[i].length, sizeof(request) - at);

		memcpy(request + at, ib_virt_dma_to_ptr(wr->sg_list[i].addr), n);
		at += n;
	}
	reply = kzalloc(sizeof(*reply), GFP_ATOMIC);
	if (!reply)
		return;
	if (!simhw_sa_answer(sib, request, reply->mad))
		goto out;
	spin_lock_irqsave(&qp->lock, flags);
	if (pop_recv(qp, &recv)) {
		at = 0;
		for (i = 0; i < recv.num_sge && at < sizeof(*reply); i++) {
			size_t n = min_t(size_t, recv.sge[i].length, sizeof(*reply) - at);

			memcpy(ib_virt_dma_to_ptr(recv.sge[i].addr), (u8 *)reply + at, n);
			at += n;
		}
		complete_recv(qp, &recv, &wc);
	}
	spin_unlock_irqrestore(&qp->lock, flags);
out:
	kfree(reply);
}

static int post_send(struct ib_qp *ibqp, const struct ib_send_wr *wr,
		     const struct ib_send_wr **bad)
{
	struct sim_qp *qp = to_qp(ibqp);

	for (; wr; wr = wr->next) {
		bool error = READ_ONCE(qp->state) == IB_QPS_ERR;
		struct ib_wc wc = {
			.wr_cqe = wr->wr_cqe,
			.qp = ibqp,
			.opcode = IB_WC_SEND,
			.status = error ? IB_WC_WR_FLUSH_ERR : IB_WC_SUCCESS,
		};

		if (error || qp->signal_all || wr->send_flags & IB_SEND_SIGNALED)
			complete_wc(ibqp->send_cq, &wc);
		if (!error && ibqp->qp_type == IB_QPT_GSI)
			answer_sa(qp, wr);
	}
	return 0;
}

static int attach_mcast(struct ib_qp *ibqp, union ib_gid *gid, u16 lid)
{
	return 0;
}

static int create_ah(struct ib_ah *ah, struct rdma_ah_init_attr *init, struct ib_udata *udata)
{
	if (udata)
		return -EOPNOTSUPP;
	container_of(ah, struct sim_ah, ib)->attr = *init->ah_attr;
	return 0;
}

/* The MAD layer compares an answer with where the question went. */
static int query_ah(struct ib_ah *ah, struct rdma_ah_attr *attr)
{
	*attr = container_of(ah, struct sim_ah, ib)->attr;
	return 0;
}

static int destroy_ah(struct ib_ah *ah, u32 flags)
{
	return 0;
}

/* ---- memory, protection domains, contexts ---- */

static int alloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	struct mlx5_ib_alloc_pd_resp resp = { .pdn = 1 };

	return udata ? ib_copy_to_udata(udata, &resp, min(sizeof(resp), udata->outlen)) : 0;
}

static int dealloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	return 0;
}

static struct ib_mr *get_dma_mr(struct ib_pd *pd, int access)
{
	struct ib_mr *mr = kzalloc(sizeof(*mr), GFP_KERNEL);

	return mr ?: ERR_PTR(-ENOMEM);
}

static struct ib_mr *reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 virt, int access,
				 struct ib_udata *udata)
{
	return ERR_PTR(-EOPNOTSUPP);
}

static int dereg_mr(struct ib_mr *mr, struct ib_udata *udata)
{
	kfree(mr);
	return 0;
}

/* What libmlx5, which takes a device by its PCI ID, wants to know before it opens it. */
static int alloc_ucontext(struct ib_ucontext *ibctx, struct ib_udata *udata)
{
	struct sim_ucontext *ctx = container_of(ibctx, struct sim_ucontext, ib);
	struct mlx5_ib_alloc_ucontext_req req = {};
	struct mlx5_ib_alloc_ucontext_resp resp = {
		.qp_tab_size = 1024,
		.bf_reg_size = 512,
		.cache_line_size = 64,
		.max_sq_desc_sz = 1024,
		.max_rq_desc_sz = 512,
		.max_send_wqebb = 32768,
		.max_recv_wr = 32768,
		.max_srq_recv_wr = 32767,
		.num_ports = 1,
		.cqe_version = 1,
		.log_uar_size = PAGE_SHIFT,
		.num_uars_per_page = 1,
	};
	int ret;

	ret = ib_copy_from_udata(&req, udata, min(sizeof(req), udata->inlen));
	if (ret)
		return ret;
	resp.tot_bfregs = max(req.total_num_bfregs, 1U);
	resp.response_length = min(sizeof(resp), udata->outlen);
	ctx->page = alloc_page(GFP_KERNEL | __GFP_ZERO);
	if (!ctx->page)
		return -ENOMEM;
	ret = ib_copy_to_udata(udata, &resp, resp.response_length);
	if (ret)
		__free_page(ctx->page);
	return ret;
}

static void dealloc_ucontext(struct ib_ucontext *ibctx)
{
	__free_page(container_of(ibctx, struct sim_ucontext, ib)->page);
}

static void disassociate_ucontext(struct ib_ucontext *ibctx)
{
}

static int mmap(struct ib_ucontext *ibctx, struct vm_area_struct *vma)
{
	if (vma->vm_end - vma->vm_start != PAGE_SIZE)
		return -EINVAL;
	return vm_insert_page(vma, vma->vm_start,
			      container_of(ibctx, struct sim_ucontext, ib)->page);
}

const struct ib_device_ops simhw_verbs_ops = {
	.alloc_pd = alloc_pd,
	.alloc_ucontext = alloc_ucontext,
	.attach_mcast = attach_mcast,
	.create_ah = create_ah,
	.create_cq = create_cq,
	.create_qp = create_qp,
	.dealloc_pd = dealloc_pd,
	.dealloc_ucontext = dealloc_ucontext,
	.dereg_mr = dereg_mr,
	.destroy_ah = destroy_ah,
	.destroy_cq = destroy_cq,
	.destroy_qp = destroy_qp,
	.detach_mcast = attach_mcast,
	.disassociate_ucontext = disassociate_ucontext,
	.get_dma_mr = get_dma_mr,
	.mmap = mmap,
	.modify_qp = modify_qp,
	.poll_cq = poll_cq,
	.post_recv = post_recv,
	.post_send = post_send,
	.query_ah = query_ah,
	.query_qp = query_qp,
	.reg_user_mr = reg_user_mr,
	.req_notify_cq = req_notify_cq,
	INIT_RDMA_OBJ_SIZE(ib_ah, sim_ah, ib),
	INIT_RDMA_OBJ_SIZE(ib_cq, sim_cq, ib),
	INIT_RDMA_OBJ_SIZE(ib_pd, sim_pd, ib),
	INIT_RDMA_OBJ_SIZE(ib_qp, sim_qp, ib),
	INIT_RDMA_OBJ_SIZE(ib_ucontext, sim_ucontext, ib),
};
