module APBGlobalHistoryRegister_secure_top #(
    parameter p_unlock_code_0 = 8'hAB,
    parameter p_unlock_code_1 = 8'hCD
) (
    input  wire       pclk,
    input  wire       presetn,
    input  wire [9:0] paddr,
    input  wire       pselx,
    input  wire       penable,
    input  wire       pwrite,
    input  wire [7:0] pwdata,
    input  wire       history_shift_valid,
    input  wire       clk_gate_en,
    input  wire       i_capture_pulse,
    output reg        pready,
    output reg  [7:0] prdata,
    output reg        pslverr,
    output reg        history_full,
    output reg        history_empty,
    output reg        error_flag,
    output reg        interrupt_full,
    output reg        interrupt_error
);
    wire unlocked;
    reg [1:0] unlocked_sync;

    // The lock lives in the capture pulse's domain; its level crosses through two flops.
    always @(posedge pclk or negedge presetn)
        if (!presetn) unlocked_sync <= 2'b00;
        else unlocked_sync <= {unlocked_sync[0], unlocked};

    security_module #(.p_unlock_code_0(p_unlock_code_0), .p_unlock_code_1(p_unlock_code_1)) lock (
        .i_capture_pulse(i_capture_pulse),
        .presetn(presetn),
        .paddr(paddr),
        .pwrite(pwrite),
        .pwdata(pwdata),
        .o_unlocked(unlocked)
    );

    APBGlobalHistoryRegister history (
        .pclk(pclk),
        .presetn(presetn),
        .i_enable(unlocked_sync[1]),
        .paddr(paddr),
        .pselx(pselx),
        .penable(penable),
        .pwrite(pwrite),
        .pwdata(pwdata),
        .history_shift_valid(history_shift_valid),
        .clk_gate_en(clk_gate_en),
        .pready(pready),
        .prdata(prdata),
        .pslverr(pslverr),
        .history_full(history_full),
        .history_empty(history_empty),
        .error_flag(error_flag),
        .interrupt_full(interrupt_full),
        .interrupt_error(interrupt_error)
    );
endmodule
