module ttc_counter_lite (
    input  wire        clk,
    input  wire        reset,
    input  wire [3:0]  axi_addr,
    input  wire [31:0] axi_wdata,
    input  wire        axi_write_en,
    input  wire        axi_read_en,
    output reg  [31:0] axi_rdata,
    output reg         interrupt
);
    reg [15:0] count, match_value, reload_value;
    reg        enable, interval_mode, interrupt_enable;
    reg [3:0]  prescaler, divided;

    wire matched = enable && count == match_value;

    always @(posedge clk)
        if (reset) begin
            {count, match_value, reload_value, enable, interval_mode, interrupt_enable, prescaler, divided} <= 0;
            {axi_rdata, interrupt} <= 0;
        end else begin
            if (enable) begin
                divided <= divided == prescaler ? 0 : divided + 1;
                if (divided == prescaler) begin
                    if (!matched) count <= count + 1;
                    else if (interval_mode) count <= reload_value;
                    else enable <= 0;
                end
            end
            if (matched && interrupt_enable) interrupt <= 1;
            if (axi_write_en)
                case (axi_addr)
                    1: match_value <= axi_wdata[15:0];
                    2: reload_value <= axi_wdata[15:0];
                    3: {interrupt_enable, interval_mode, enable} <= axi_wdata[2:0];
                    4: interrupt <= 0;
                    5: prescaler <= axi_wdata[3:0];
                    default: ;
                endcase
            if (axi_read_en)
                case (axi_addr)
                    0: axi_rdata <= count;
                    1: axi_rdata <= match_value;
                    2: axi_rdata <= reload_value;
                    3: axi_rdata <= {interrupt_enable, interval_mode, enable};
                    4: axi_rdata <= interrupt;
                    5: axi_rdata <= prescaler;
                    default: axi_rdata <= 0;
                endcase
        end
endmodule
