module APBGlobalHistoryRegister (
    input  wire       pclk,
    input  wire       presetn,
    input  wire       i_enable,  // while low, nothing leaves its reset value
    input  wire [9:0] paddr,
    input  wire       pselx,
    input  wire       penable,
    input  wire       pwrite,
    input  wire [7:0] pwdata,
    input  wire       history_shift_valid,
    input  wire       clk_gate_en,
    output reg        pready,
    output reg  [7:0] prdata,
    output reg        pslverr,
    output wire       history_full,
    output wire       history_empty,
    output wire       error_flag,
    output wire       interrupt_full,
    output wire       interrupt_error
);
    localparam [9:0] CONTROL = 0, TRAIN = 1, PREDICT = 2;

    // The reserved bits of the two registers are not built.
    reg [3:0] control;
    reg [6:0] train;
    reg [7:0] predict;

    wire predict_valid = control[0];
    wire predict_taken = control[1];
    wire mispredicted = control[2];
    wire train_taken = control[3];

    // Gating is a clock enable: no glitch can come of it, and synthesis makes a clock gate of it.
    always @(posedge pclk or negedge presetn)
        if (!presetn) begin
            pready <= 0;
            prdata <= 0;
            pslverr <= 0;
            control <= 0;
            train <= 0;
        end else if (i_enable && !clk_gate_en) begin
            pready <= 1;
            prdata <= 0;
            if (pselx && penable) begin
                pslverr <= paddr > PREDICT;
                case (paddr)
                    CONTROL: prdata <= control;
                    TRAIN:   prdata <= train;
                    PREDICT: prdata <= predict;
                    default: prdata <= 0;
                endcase
                if (pwrite && paddr == CONTROL) control <= pwdata[3:0];
                if (pwrite && paddr == TRAIN) train <= pwdata[6:0];
            end
        end

    // Bit 0 holds the youngest branch. A misprediction outranks a prediction.
    always @(posedge history_shift_valid or negedge presetn)
        if (!presetn)
            predict <= 0;
        else if (i_enable) begin
            if (mispredicted) predict <= {train, train_taken};
            else if (predict_valid) predict <= {predict[6:0], predict_taken};
        end

    assign history_full = &predict;
    assign history_empty = ~|predict;
    assign interrupt_full = history_full;
    assign error_flag = pslverr;
    assign interrupt_error = pslverr;
endmodule
