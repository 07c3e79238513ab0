module dma_xfer_engine #(
    parameter [1:0] DMA_B  = 2'b00,
    parameter [1:0] DMA_HW = 2'b01,
    parameter [1:0] DMA_W  = 2'b10
) (
    input  logic        clk,
    input  logic        rstn,
    input  logic [3:0]  addr,
    input  logic        we,
    input  logic [31:0] wd,
    output logic [31:0] rd,
    input  logic        dma_req,
    input  logic        bus_grant,
    input  logic [31:0] rd_m,
    output logic        bus_req,
    output logic        bus_lock,
    output logic [31:0] addr_m,
    output logic        we_m,
    output logic [31:0] wd_m,
    output logic [1:0]  size_m
);
    localparam [3:0] DMA_CR = 4'h0, DMA_SRC_ADR = 4'h4, DMA_DST_ADR = 4'h8;
    localparam [1:0] IDLE = 0, WB = 1, TR = 2;

    typedef struct packed {
        logic [2:0] cnt;
        logic [1:0] src_size;
        logic [1:0] dst_size;
        logic       inc_src;
        logic       inc_dst;
        logic       line_en;
    } control_t;

    control_t    cr, job;
    logic [31:0] src_adr, dst_adr, src, dst, buffer;
    logic [1:0]  state;
    logic [2:0]  left;
    logic        writing;

    function automatic [2:0] bytes(input [1:0] size);
        bytes = size == DMA_B ? 1 : size == DMA_HW ? 2 : 4;
    endfunction

    // The part of a word that a transfer of this size moves, at the low end.
    function automatic [31:0] cut(input [31:0] word, input [1:0] size);
        cut = size == DMA_B ? word[7:0] : size == DMA_HW ? word[15:0] : word;
    endfunction

    // By how many bits the addressed lane lies above bit 0; bits below the alignment of the size do not count.
    function automatic [4:0] lane(input [1:0] low, input [1:0] size);
        lane = size == DMA_B ? {low, 3'b000} : size == DMA_HW ? {low[1], 4'b0000} : 5'd0;
    endfunction

    assign bus_req  = state != IDLE;
    assign bus_lock = bus_req;
    assign we_m     = state == TR && writing;
    assign addr_m   = state != TR ? '0 : writing ? dst : src;
    assign size_m   = state != TR ? DMA_B : writing ? job.dst_size : job.src_size;
    assign wd_m     = we_m ? cut(buffer, job.dst_size) << lane(dst[1:0], job.dst_size) : '0;

    always_comb
        if (we) rd = '0;
        else
            case (addr)
                DMA_CR: rd = cr;
                DMA_SRC_ADR: rd = src_adr;
                DMA_DST_ADR: rd = dst_adr;
                default: rd = '0;
            endcase

    always_ff @(posedge clk or negedge rstn)
        if (!rstn) {cr, src_adr, dst_adr} <= '0;
        else if (we)
            case (addr)
                DMA_CR: cr <= wd[9:0];
                DMA_SRC_ADR: src_adr <= wd;
                DMA_DST_ADR: dst_adr <= wd;
                default: ;
            endcase

    // A transfer works on copies, so that the next one may be set up while it runs.
    always_ff @(posedge clk or negedge rstn)
        if (!rstn) begin
            state <= IDLE;
            {job, src, dst, buffer, left, writing} <= '0;
        end else
            case (state)
                IDLE:
                    if (dma_req && cr.cnt != 0) begin
                        state <= WB;
                        job <= cr;
                        src <= src_adr;
                        dst <= dst_adr;
                        left <= cr.cnt;
                        writing <= 0;
                    end
                WB: if (bus_grant) state <= TR;
                TR:
                    if (bus_grant) begin
                        writing <= !writing;
                        if (!writing) begin
                            buffer <= cut(rd_m >> lane(src[1:0], job.src_size), job.src_size);
                            if (job.inc_src) src <= src + bytes(job.src_size);
                        end else begin
                            if (job.inc_dst) dst <= dst + bytes(job.dst_size);
                            left <= left - 1;
                            if (left == 1) state <= IDLE;
                        end
                    end
                default: state <= IDLE;
            endcase
endmodule
